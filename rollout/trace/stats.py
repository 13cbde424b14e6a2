"""Statistics of trajectories: lengths, rewards and endings, and the lengths that a training run should allow.

They are taken from entries of the index, which stream: memory holds a few numbers for each trajectory.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean

from mcp_rollout.rollout.trace.entries import Entry

STEP = 128
"""Recommended lengths are multiples of this many tokens."""
_MEASURED = ("turns", "tool_calls", "prompt_tokens", "response_tokens", "completion_tokens", "elapsed_s")


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
    """Mean over the trajectories with a reward, of a training without the held-out ones."""
    held_out: dict[int, float]
    """Mean reward of the held-out trajectories of a training by step, in order."""
    tool_error_rate: float
    distributions: dict[str, Distribution]
    """By `turns`, `tool_calls`, `prompt_tokens`, `response_tokens`, `completion_tokens` (per turn) and `elapsed_s`."""
    recommended: Recommendation | None
    marked_turns: dict[str, int]
    """Number of turns by kind of mark, most frequent first."""


def statistics_of(entries: Iterable[Entry]) -> Stats:
    """Compute the statistics of trajectories from their entries."""
    values = {name: array("d") for name in _MEASURED}
    stop_reasons, marked = Counter[str](), Counter[str]()
    rewards, held_out = array("d"), defaultdict[int, list[float]](list)
    withdrawn = calls = errors = 0
    for entry in entries:
        if entry["withdrawn"]:
            withdrawn += 1
            continue
        for name in _MEASURED:
            values[name].extend(entry["completions"] if name == "completion_tokens" else [entry[name]])
        if entry["reward"] is not None:
            (held_out[entry["step"]] if entry["validate"] else rewards).append(entry["reward"])
        stop_reasons[entry["stop_reason"]] += 1
        marked.update(entry["marks"])
        calls, errors = calls + entry["tool_calls"], errors + entry["tool_errors"]
    recommended = None
    if values["completion_tokens"]:
        recommended = Recommendation(
            max_prompt_length=_rounded_up(max(values["prompt_tokens"])),
            max_response_length=_rounded_up(1.25 * max(values["response_tokens"])),
            tokens_per_turn=_rounded_up(1.25 * max(values["completion_tokens"])),
        )
    return Stats(
        trajectories=len(values["turns"]),
        withdrawn=withdrawn,
        stop_reasons=dict(stop_reasons.most_common()),
        reward=fmean(rewards) if rewards else None,
        held_out={step: fmean(held_out[step]) for step in sorted(held_out)},
        tool_error_rate=errors / max(1, calls),
        distributions={name: _distribution(numbers) for name, numbers in values.items() if numbers},
        recommended=recommended,
        marked_turns=dict(marked.most_common()),
    )


def _rounded_up(tokens: float) -> int:
    return STEP * ceil(tokens / STEP)


def _distribution(numbers: Sequence[float]) -> Distribution:
    ordered = sorted(numbers)
    return Distribution(
        mean=fmean(ordered), median=quantile(ordered, 0.5), p95=quantile(ordered, 0.95), longest=ordered[-1]
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)]
