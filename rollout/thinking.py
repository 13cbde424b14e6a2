"""What the context is like without the thinking of earlier turns, as the templates that models are served with drop it.

The sampled ids of calls and answers stay as they were sampled: rendering the messages anew would put what the template
makes of them in their place, and lose what could not be read as a call.
"""

from __future__ import annotations

from collections.abc import Sequence

from rollout import hermes
from rollout.trace.segment import Segment, Span, SpanKind
from rollout.types import TokenBuilder

_MARKER_TOKENS = 8
"""Most tokens that `<think>` and the newlines around it take."""


def without_thinking(segment: Segment, tokens: TokenBuilder) -> list[int]:
    """Prompt and response, each thought left out with its markers and with the newlines behind it.

    A `<think>` that the template had put into the generation prompt goes with the thought that it opened.
    """
    ids = list(segment.prompt_ids)
    thought: Span | None = None
    for span in segment.spans:
        own = segment.response_ids[span.start : span.end]
        if span.kind is SpanKind.THINKING:
            thought = span
            ids = _without_opening(ids, tokens)
        elif span.kind is SpanKind.FORCED:
            continue
        elif span.kind is SpanKind.COMPLETION and thought is not None and thought.turn == span.turn:
            ids += _without_newlines(own, tokens)
        else:
            ids += own
    return ids


def _without_opening(ids: list[int], tokens: TokenBuilder) -> list[int]:
    """The context before a thought, without a `<think>` at its end."""
    for count in range(1, min(_MARKER_TOKENS, len(ids)) + 1):
        tail = tokens.decode(ids[-count:])
        if tail.strip() == hermes.THINK_OPEN:
            return ids[:-count]
        if not hermes.THINK_OPEN.endswith(tail.strip()):
            return ids
    return ids


def _without_newlines(ids: Sequence[int], tokens: TokenBuilder) -> Sequence[int]:
    """A completion's tokens behind its thought; one that holds more than newlines stays whole."""
    begin = 0
    while begin < len(ids) and (text := tokens.decode(ids[begin : begin + 1])) and not text.strip("\n"):
        begin += 1
    return ids[begin:]
