"""Lengths of a trajectory in tokens, as the limits of a training run count them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rollout.trace.record import Trace


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """Lengths of one trajectory in tokens."""

    prompt: int
    response: int
    """Sampled, tool and user tokens of all turns, in the longest context of the trajectory."""
    completions: tuple[int, ...]
    """Sampled tokens of each turn."""


def recorded_lengths(trace: Trace) -> Lengths:
    """Lengths in the tokens of the engine that generated the trajectory."""
    sampled = Counter[int]()
    segments = trace.segments or [trace]
    for segment in segments:
        for span in segment.spans:
            if span.kind.is_sampled:
                sampled[span.turn] += span.end - span.start
    prompt = len(segments[0].prompt_ids)
    return Lengths(
        prompt=prompt,
        # The prompt of a later segment contains the conversation so far, which counts against the same budget.
        response=max(len(segment.prompt_ids) + len(segment.response_ids) for segment in segments) - prompt,
        completions=tuple(sampled[turn] for turn in range(len(trace.turns))),
    )
