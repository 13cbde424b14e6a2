"""Statistics of trajectories: lengths, rewards and endings, and the lengths that a training run should allow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean

from rollout.trace.drift import calls_seen, drifts, siblings
from rollout.trace.record import Trace

STEP = 128
"""Recommended lengths are multiples of this many tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """Lengths of one trajectory in tokens."""

    prompt: int
    response: int
    """Sampled, tool and user tokens of all turns, in the longest context of the trajectory."""
    completions: tuple[int, ...]
    """Sampled tokens of each turn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Distribution:
    mean: float
    median: float
    p95: float
    longest: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Recommendation:
    """Keys of a training run. Each is the longest value plus a quarter, rounded up to a multiple of `STEP`.

    The prompt length has no margin: a longer prompt cannot occur in the same rows.
    """

    max_prompt_length: int
    max_response_length: int
    tokens_per_turn: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Stats:
    """Statistics of a directory of traces."""

    trajectories: int
    withdrawn: int
    """Withdrawn trajectories, which all other fields leave out."""
    stop_reasons: dict[str, int]
    reward: float | None
    """Mean over the trajectories with a reward."""
    tool_error_rate: float
    distributions: dict[str, Distribution]
    """By `turns`, `tool_calls`, `prompt_tokens`, `response_tokens`, `completion_tokens` (per turn) and `elapsed_s`."""
    recommended: Recommendation | None
    marked_turns: dict[str, int]
    """Number of turns by kind of mark, most frequent first."""
    drifted_calls: int
    """Calls with different results in sibling trajectories."""
    drift_example: str | None


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


def statistics_of(measured: Iterable[tuple[Trace, Lengths]], *, withdrawn: int = 0) -> Stats:
    """Compute the statistics of trajectories.

    Args:
        measured: trajectories that are not withdrawn, each with its lengths.
        withdrawn: the number of withdrawn trajectories.
    """
    pairs = list(measured)
    drifted = drifts((siblings(trace), calls_seen(trace)) for trace, _ in pairs)
    marked = Counter(kind for trace, _ in pairs for turn in trace.turns for kind in {mark.kind for mark in turn.marks})
    traces, lengths = [trace for trace, _ in pairs], [length for _, length in pairs]
    completions = [tokens for length in lengths for tokens in length.completions]
    rewards = [trace.reward.score for trace in traces if trace.reward]
    values: dict[str, Sequence[float]] = {
        "turns": [len(trace.turns) for trace in traces],
        "tool_calls": [trace.tool_calls for trace in traces],
        "prompt_tokens": [length.prompt for length in lengths],
        "response_tokens": [length.response for length in lengths],
        "completion_tokens": completions,
        "elapsed_s": [trace.elapsed_s for trace in traces],
    }
    recommended = None
    if completions:
        recommended = Recommendation(
            max_prompt_length=_rounded_up(max(values["prompt_tokens"])),
            max_response_length=_rounded_up(1.25 * max(values["response_tokens"])),
            tokens_per_turn=_rounded_up(1.25 * max(completions)),
        )
    return Stats(
        trajectories=len(pairs),
        withdrawn=withdrawn,
        stop_reasons=dict(Counter(str(trace.stop_reason) for trace in traces).most_common()),
        reward=fmean(rewards) if rewards else None,
        tool_error_rate=sum(trace.tool_errors for trace in traces) / max(1, sum(trace.tool_calls for trace in traces)),
        distributions={name: _distribution(numbers) for name, numbers in values.items() if numbers},
        recommended=recommended,
        marked_turns={str(kind): count for kind, count in marked.most_common()},
        drifted_calls=len(drifted),
        drift_example=str(drifted[0]) if drifted else None,
    )


def _rounded_up(tokens: float) -> int:
    return STEP * ceil(tokens / STEP)


def _distribution(numbers: Sequence[float]) -> Distribution:
    ordered = sorted(numbers)
    return Distribution(
        mean=fmean(ordered), median=_quantile(ordered, 0.5), p95=_quantile(ordered, 0.95), longest=ordered[-1]
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)]
