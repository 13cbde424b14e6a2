"""Append-only segments: the part of a trajectory that is one training sample, and a trajectory's lengths in tokens."""

from __future__ import annotations

import base64
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Any, cast

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema

Id = Annotated[int, Field(ge=-(2**31), lt=2**31)]
"""Of a token, or a place among them, as an int32 can hold it. A damaged record has others, and is none."""
FINITE = ConfigDict(allow_inf_nan=False)
"""For numbers of a record: JSON has no others, and statistics cannot do with them."""
Place = Annotated[int, Field(ge=0, lt=2**31)]
Flag = Annotated[int, Field(ge=0, le=1)]
_PACKED = 2**16


def packed(values: Sequence[float]) -> list[str]:
    """Numbers as texts, each the base64 of up to 65,536 float32: their first bytes, then their second ones and so on.

    Compressed, a log-probability takes half of what its digits would: only the bytes with sign and exponent repeat.
    """
    parts = (array("f", values[start : start + _PACKED]).tobytes() for start in range(0, len(values), _PACKED))
    return [base64.b64encode(b"".join(part[byte::4] for byte in range(4))).decode() for part in parts]


def unpacked(texts: Any) -> list[float]:
    """The inverse of `packed`. Raises ValueError: these are not such texts."""
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in cast("list[Any]", texts)):
        raise ValueError("not texts of packed numbers")
    found = array("f")
    for text in cast("list[str]", texts):
        data = base64.b64decode(text, validate=True)
        apart = bytearray(len(data))
        for byte in range(4):
            apart[byte::4] = data[byte * len(data) // 4 : (byte + 1) * len(data) // 4]
        found.frombytes(apart)
    return found.tolist()


Logprobs = Annotated[
    list[float],
    BeforeValidator(unpacked),
    WithJsonSchema({"type": "array", "items": {"type": "string", "contentEncoding": "base64"}}),
]


class SpanKind(StrEnum):
    THINKING = "thinking"
    COMPLETION = "completion"
    """Sampled tokens after the thinking."""
    CONTEXT = "context"
    """Rendered tool or user messages, and boundary tokens."""
    FORCED = "forced"
    """The marker with which the thinking budget closed a thought; it is not sampled."""

    @property
    def is_sampled(self) -> bool:
        return self in (SpanKind.THINKING, SpanKind.COMPLETION)


@dataclass(kw_only=True)
class Span:
    """A run of response tokens of one kind, `[start, end)` counted from the first response token."""

    kind: SpanKind
    turn: Id
    start: Id
    end: Id


@dataclass(kw_only=True, slots=True)
class Segment:
    """A prompt and a response to which tokens were only appended: each generation saw exactly the tokens before it."""

    __pydantic_config__ = FINITE

    prompt_ids: list[Id] = field(default_factory=list[int])
    response_ids: list[Id] = field(default_factory=list[int])
    loss_mask: list[Flag] = field(default_factory=list[int])  # [len(response_ids)], 1 where sampled and in the loss
    logprobs: Logprobs = field(default_factory=list[float])  # [len(response_ids)], 0.0 where not sampled
    images: int = 0
    """Number of the messages' images that are in prompt and response, counted from the first."""
    spans: list[Span] = field(default_factory=list[Span])

    @property
    def turns_sampled(self) -> list[int]:
        """Numbers of the turns with sampled tokens in this segment, in order."""
        return list(dict.fromkeys(span.turn for span in self.spans if span.kind.is_sampled))

    @property
    def sampled_tokens(self) -> int:
        return sum(span.end - span.start for span in self.spans if span.kind.is_sampled)

    @property
    def is_in_loss(self) -> bool:
        return 1 in self.loss_mask

    def add_span(
        self, kind: SpanKind, turn: int, ids: list[int], logprobs: list[float] | None = None, *, in_loss: bool = False
    ) -> None:
        """Append tokens of one kind to the response."""
        if not ids:
            return
        start = len(self.response_ids)
        self.response_ids += ids
        self.loss_mask += [int(in_loss)] * len(ids)
        self.logprobs += logprobs if logprobs is not None else [0.0] * len(ids)
        self.spans.append(Span(kind=kind, turn=turn, start=start, end=start + len(ids)))

    def trim(self, count: int) -> list[int]:
        """Remove the last `count` tokens of the response; return them if any was sampled, else an empty list."""
        kept = len(self.response_ids) - count
        removed = self.response_ids[kept:]
        del self.response_ids[kept:], self.loss_mask[kept:], self.logprobs[kept:]
        sampled = False
        while self.spans and self.spans[-1].end > kept:
            last = self.spans[-1]
            sampled = sampled or last.kind.is_sampled
            last.end = kept
            if last.start >= kept:
                self.spans.pop()
        return removed if sampled else []

    def mask(self, turn: int | None = None) -> None:
        """Mask one turn from the loss, or all turns where `turn` is None."""
        if turn is None:
            self.loss_mask[:] = [0] * len(self.loss_mask)
            return
        for span in reversed(self.spans):
            if span.turn == turn:
                self.loss_mask[span.start : span.end] = [0] * (span.end - span.start)
            # Spans are in the order of turns, so none before this one is of the turn.
            elif span.turn < turn:
                return


def runs(
    length: int, thoughts: Sequence[tuple[int, int]], forced: tuple[int, int] | None
) -> Iterator[tuple[SpanKind, int, int]]:
    """Split a completion into runs (kind, begin, end), in order and without gaps; each thought is a separate run.

    Args:
        length: number of ids of the completion.
        thoughts: `[begin, end)` of each thought.
        forced: `[begin, end)` of the ids that are not sampled, if any; they belong to no thought.
    """
    first, last = forced or (0, 0)
    cuts = {min(cut, length) for thought in thoughts for cut in thought if not first < cut < last}
    for begin, end in pairwise(sorted(cuts | {0, first, last, length})):
        if first <= begin < last:
            yield SpanKind.FORCED, begin, end
        elif any(start <= begin < stop for start, stop in thoughts):
            yield SpanKind.THINKING, begin, end
        else:
            yield SpanKind.COMPLETION, begin, end


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """Lengths of one trajectory in tokens, as the limits of a training run count them."""

    prompt: int
    response: int
    """Sampled, tool and user tokens of all turns, in the longest context of the trajectory."""
    completions: tuple[int, ...]
    """Sampled tokens of each turn."""


def recorded_lengths(segments: Sequence[Segment], turns: int) -> Lengths:
    """Lengths of a trajectory of `turns` turns, in the tokens of the engine that generated it."""
    sampled = Counter[int]()
    for segment in segments:
        for span in segment.spans:
            if span.kind.is_sampled:
                sampled[span.turn] += span.end - span.start
    prompt = len(segments[0].prompt_ids)
    return Lengths(
        prompt=prompt,
        # The prompt of a later segment contains the conversation so far, which counts against the same budget.
        response=max(len(segment.prompt_ids) + len(segment.response_ids) for segment in segments) - prompt,
        completions=tuple(sampled[turn] for turn in range(turns)),
    )
