"""The summary of a run's trajectories."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rollout.evaluation.estimates import Estimate, estimate, ks, pass_at_k, pass_hat_k
from rollout.evaluation.resume import is_done
from rollout.trace.record import Trace


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """Of one environment, or of all.

    Failed trajectories count in `trajectories`, `stop_reasons`, `failed` and `failures` only.
    """

    trajectories: int
    resumed: int
    failed: int
    tasks: int
    """Rows with at least one trajectory that did not fail."""
    samples: int
    success_at: float
    """The least reward that counts as a success."""
    pass_at_k: dict[int, Estimate]
    """By k: whether at least one of k samples succeeds. A row with fewer than k samples is left out of it."""
    pass_hat_k: dict[int, Estimate]
    """By k: whether all of k samples succeed."""
    reward_mean: float | None
    reward_std: float | None
    reward_parts: dict[str, float] = field(default_factory=dict[str, float])
    turns_mean: float | None
    tool_calls: int
    tool_error_rate: float
    sampled_tokens: int
    """Each token once, however many leaves of a tree share it."""
    strategies: dict[str, int]
    branches: int
    """Leaves that share their beginning with another; samples of their rows are not independent."""
    shared_tokens: int
    """Tokens that branches took over instead of sampling them."""
    stop_reasons: dict[str, int]
    failures: dict[str, int]


def summarise(
    traces: Sequence[Trace], *, resumed: int, samples: int, success_at: float, parts: Sequence[str] = ()
) -> Summary:
    """Summarise trajectories; `parts` names the reward parts to average."""
    played = [trace for trace in traces if is_done(trace)]
    rewards = [trace.reward for trace in played if trace.reward is not None]
    scores = [reward.score for reward in rewards]
    calls = sum(trace.tool_calls for trace in played)
    rows = _successes(played, success_at)
    shared = sum(trace.strategy.shared_tokens for trace in played)
    return Summary(
        trajectories=len(traces),
        resumed=resumed,
        failed=len(traces) - len(played),
        tasks=len(rows),
        samples=samples,
        success_at=success_at,
        pass_at_k=_estimates(rows, samples, pass_at_k),
        pass_hat_k=_estimates(rows, samples, pass_hat_k),
        reward_mean=statistics.fmean(scores) if scores else None,
        reward_std=statistics.pstdev(scores) if scores else None,
        reward_parts={part: statistics.fmean(reward.parts[part] for reward in rewards) for part in parts if rewards},
        turns_mean=statistics.fmean(len(trace.turns) for trace in played) if played else None,
        tool_calls=calls,
        tool_error_rate=sum(trace.tool_errors for trace in played) / calls if calls else 0.0,
        sampled_tokens=sum(turn.sampled for trace in played for turn in trace.turns) - shared,
        strategies=dict(Counter(trace.strategy.use.value for trace in played)),
        branches=sum(trace.origin.parent is not None for trace in played),
        shared_tokens=shared,
        stop_reasons=dict(Counter(str(trace.stop_reason) for trace in traces)),
        failures=dict(Counter(_failure(trace) for trace in traces if not is_done(trace))),
    )


def _failure(trace: Trace) -> str:
    if trace.failure is None:
        return str(trace.stop_reason)
    return f"{trace.failure.kind}: {trace.failure.message}"


def _successes(played: Sequence[Trace], success_at: float) -> list[tuple[int, int]]:
    """(samples, successes) of each row."""
    rows: dict[tuple[str, int], list[bool]] = defaultdict(list)
    for trace in played:
        assert trace.reward is not None
        rows[trace.task.environment, trace.origin.row].append(trace.reward.reaches(success_at))
    return [(len(row), sum(row)) for row in rows.values()]


def _estimates(
    rows: Sequence[tuple[int, int]], samples: int, of: Callable[[int, int, int], float]
) -> dict[int, Estimate]:
    found: dict[int, Estimate] = {}
    for k in ks(samples):
        counted = [(n, c) for n, c in rows if n >= k]
        made = estimate([of(n, c, k) for n, c in counted], most_trials=sum(n for n, _ in counted) / k)
        if made is not None:
            found[k] = made
    return found
