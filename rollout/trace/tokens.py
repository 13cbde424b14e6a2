"""The tokens of a trajectory one by one: what was sampled, what is in the loss, with which log-probability."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from rollout.trace.record import Trace
from rollout.trace.segment import Segment, SpanKind
from rollout.trace.trained_segment import TrainedSegment

_TRAINED = ("trainer", "ratio", "advantage", "push", "entropy")
"""`push` is advantage times (1 - probability), by how much the update could move the token's own logit."""
Texts = Callable[[Sequence[int]], list[str]]
"""Texts of ids, one for each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """One token of a segment's response."""

    segment: int
    """Number of the segment, from 0: of all segments, those without sampled tokens included."""
    position: int
    """In the segment's response, from 0."""
    id: int
    turn: int
    kind: SpanKind
    in_loss: bool
    logprob: float | None
    """At sampling; None where the token was not sampled or the engine gave none."""


def tokens_of(trace: Trace) -> Iterator[Token]:
    """The response tokens of all segments, in order."""
    for number, segment in enumerate((*trace.earlier, trace)):
        yield from _tokens(number, segment, has_logprobs=trace.has_logprobs)


def token_lines(trace: Trace, trained: Iterable[TrainedSegment] = (), *, texts: Texts | None = None) -> Iterator[str]:
    """A header, and a line for each token; turns are counted from 1 as in `trace show`.

    Args:
        texts: the tokens' texts, as a last column in quotes; ids alone where it gives empty ones.
        trained: what a trainer computed on this trace. Of several records of a segment the last counts: a step that is
            trained again after a resume has two.
    """
    latest = {each.segment: each for each in trained}
    steps = {each.step for each in latest.values()}
    dropped = {each.dropped for each in latest.values() if each.dropped is not None}
    withdrawn = (
        [f"withdrawn: {trace.failure.kind if trace.failure else trace.stop_reason}"] if trace.is_withdrawn else []
    )
    head = [*withdrawn, *(f"step {step}" for step in steps), *(f"dropped: {reason}" for reason in dropped)]
    yield " ".join([trace.id, *head])
    columns = [f"{name:>10}" for name in ("logprob", *(_TRAINED if latest else ()))]
    last = "  text" if texts else ""
    yield f"{'segment':>7} {'position':>8} {'turn':>4} {'kind':<10} {'loss':>4} {'id':>8} {' '.join(columns)}{last}"
    segments = (*trace.earlier, trace)
    # With the prompt before them: a character can begin in it.
    shown_texts = [
        texts([*each.prompt_ids, *each.response_ids])[len(each.prompt_ids) :] if texts else [] for each in segments
    ]
    for token in tokens_of(trace):
        numbers = [token.logprob, *(_computed(latest.get(token.segment), token.position) if latest else ())]
        place = f"{token.segment:>7} {token.position:>8} {token.turn + 1:>4} {token.kind:<10}"
        shown = " ".join(" " * 10 if number is None else f"{number:>10.5f}" for number in numbers)
        text = shown_texts[token.segment][token.position] if texts else ""
        quoted = f"  {json.dumps(text, ensure_ascii=False)}" if text else ""
        yield f"{place} {int(token.in_loss):>4} {token.id:>8} {shown}{quoted}".rstrip()


def _computed(trained: TrainedSegment | None, position: int) -> list[float | None]:
    """The trainer's numbers of one token, in the order of the columns; None where it was not trained on."""
    if trained is None or position >= len(trained.mask) or not trained.mask[position]:
        return [None] * len(_TRAINED)
    sampled, trainer = trained.sampled_logprobs, trained.trainer_logprobs[position]
    ratio = None if sampled is None else math.exp(trainer - sampled[position])
    entropy = None if trained.entropy is None else trained.entropy[position]
    advantage = trained.advantages[position]
    return [trainer, ratio, advantage, advantage * (1 - math.exp(min(0.0, trainer))), entropy]


def _tokens(number: int, segment: Segment, *, has_logprobs: bool) -> Iterator[Token]:
    for span in segment.spans:
        for position in range(span.start, span.end):
            yield Token(
                segment=number,
                position=position,
                id=segment.response_ids[position],
                turn=span.turn,
                kind=span.kind,
                in_loss=bool(segment.loss_mask[position]),
                logprob=segment.logprobs[position] if span.kind.is_sampled and has_logprobs else None,
            )
