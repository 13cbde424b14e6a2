"""The tokens of a trajectory one by one: what was sampled, what is in the loss, with which log-probability."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rollout.trace.record import Trace
from rollout.trace.segment import Segment, SpanKind


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


def token_lines(trace: Trace) -> Iterator[str]:
    """A header, and a line for each token."""
    yield f"{trace.id}"
    yield f"{'segment':>7} {'position':>8} {'turn':>4} {'kind':<10} {'loss':>4} {'id':>8} {'logprob':>10}"
    for token in tokens_of(trace):
        logprob = "" if token.logprob is None else f"{token.logprob:.5f}"
        place = f"{token.segment:>7} {token.position:>8} {token.turn:>4} {token.kind:<10}"
        yield f"{place} {int(token.in_loss):>4} {token.id:>8} {logprob:>10}".rstrip()


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
