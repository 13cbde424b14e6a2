"""The summary of a run's trajectories."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.reward_config import Component
from mcp_rollout.rollout.environment.sections import AgentConfig
from mcp_rollout.rollout.environment.task import Task
from mcp_rollout.rollout.evaluation.estimates import Estimate, estimate, ks, pass_at_k, pass_hat_k
from mcp_rollout.rollout.evaluation.resume import RunKey, is_done
from mcp_rollout.rollout.trace.outcome import Reward, StopReason, StrategyRecord
from mcp_rollout.rollout.trace.record import Trace, worlds_lost


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a trajectory ended: less than a kilobyte, however long the trajectory was."""

    trace: str
    """The trace's id."""
    key: RunKey
    run: str
    """Name of its run record."""
    is_done: bool
    """Whether it ended and was scored."""
    agent: AgentConfig | None
    reward: Reward | None
    stop_reason: StopReason | None
    failure: str | None
    """Kind and message of what withdrew it."""
    turns: int
    tool_calls: int
    tool_errors: int
    sampled_tokens: int
    """Not counting tokens that a branch took over."""
    strategy: StrategyRecord
    is_branch: bool
    worlds_lost: int
    """Attempts that ended because the world was lost, the last one included."""

    @classmethod
    def of(cls, trace: Trace) -> Outcome:
        failure = trace.failure
        return cls(
            trace=trace.id,
            key=RunKey.of(trace.task, trace.origin),
            run=trace.run,
            is_done=is_done(trace),
            agent=trace.agent,
            reward=trace.reward,
            stop_reason=trace.stop_reason,
            failure=None if failure is None else f"{failure.kind}: {failure.message}",
            turns=len(trace.turns),
            tool_calls=trace.tool_calls,
            tool_errors=trace.tool_errors,
            sampled_tokens=trace.sampled_anew,
            strategy=trace.strategy,
            worlds_lost=worlds_lost(trace),
            is_branch=trace.origin.parent is not None,
        )


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
    stop_reasons: dict[str, int]
    failures: dict[str, int]
    worlds_lost: int
    """Attempts that ended because the world was lost, also where a later attempt succeeded."""


def summarise(
    outcomes: Sequence[Outcome], *, resumed: int, samples: int, success_at: float, parts: Sequence[str] = ()
) -> Summary:
    """Summarise trajectories; `parts` names the reward parts to average."""
    played = [outcome for outcome in outcomes if outcome.is_done]
    rewards = [outcome.reward for outcome in played if outcome.reward is not None]
    scores = [reward.score for reward in rewards]
    calls = sum(outcome.tool_calls for outcome in played)
    rows = _successes(played, success_at)
    return Summary(
        trajectories=len(outcomes),
        resumed=resumed,
        failed=len(outcomes) - len(played),
        tasks=len(rows),
        samples=samples,
        success_at=success_at,
        pass_at_k=_estimates(rows, samples, pass_at_k),
        pass_hat_k=_estimates(rows, samples, pass_hat_k),
        reward_mean=statistics.fmean(scores) if scores else None,
        reward_std=statistics.pstdev(scores) if scores else None,
        reward_parts={part: statistics.fmean(reward.parts[part] for reward in rewards) for part in parts if rewards},
        turns_mean=statistics.fmean(outcome.turns for outcome in played) if played else None,
        tool_calls=calls,
        tool_error_rate=sum(outcome.tool_errors for outcome in played) / calls if calls else 0.0,
        sampled_tokens=sum(outcome.sampled_tokens for outcome in played),
        strategies=dict(Counter(outcome.strategy.use.value for outcome in played)),
        branches=sum(outcome.is_branch for outcome in played),
        stop_reasons=dict(Counter(str(outcome.stop_reason) for outcome in outcomes)),
        worlds_lost=sum(outcome.worlds_lost for outcome in outcomes),
        failures=dict(Counter(each.failure or str(each.stop_reason) for each in outcomes if not each.is_done)),
    )


def _successes(played: Sequence[Outcome], success_at: float) -> list[tuple[int, int]]:
    """(samples, successes) of each row."""
    rows: dict[tuple[str, int], list[bool]] = defaultdict(list)
    for outcome in played:
        assert outcome.reward is not None
        rows[outcome.key.environment, outcome.key.row].append(outcome.reward.reaches(success_at))
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


def note_on_rewards(environment: Environment, tasks: Sequence[Task]) -> str | None:
    """Report before the run the rows that can earn nothing; None if each can earn something."""
    if not environment.is_rewarded:
        return _note(environment, "gives nothing, so that every reward is 0", key="reward", remedy="see docs/write.md")
    without = sum(not (task.answer or task.check) for task in tasks)
    if not without or not environment.reward.weight(Component.SOLVED):
        return None
    problem = f"rewards what a row asks for, and {without} of {len(tasks)} rows have neither an answer nor checks: 0"
    return _note(environment, problem, key="reward.weights.solved", remedy="give each row its `answer` or `check`")


def _note(environment: Environment, problem: str, *, key: str, remedy: str) -> str:
    """In the form of an error: file, key, problem and remedy."""
    return str(ConfigError(problem, file=environment.file or environment.name, key=key, remedy=remedy))
