"""The metrics of a batch that verl's loggers get."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_rollout.rollout.environment.task import Origin, Task
from mcp_rollout.rollout.trace.record import Reward, StopReason, Trace

pytestmark = pytest.mark.usefixtures("imported_verl")


def ended(environment: str, parts: dict[str, float], *, withdrawn: bool = False) -> Trace:
    trace = Trace.begin(
        "t", Task(environment=environment, task="a", seed=0, prompt=({"role": "user", "content": "Hello"},)), Origin()
    )
    trace.response_ids, trace.reward = [1], Reward(score=0.0, parts=parts)
    trace.stop_reason = StopReason.ANSWERED
    if withdrawn:
        trace.fail("server_unavailable", "it is gone")
    return trace


def test_reward_parts_are_averaged_by_environment_over_the_trajectories_that_count() -> None:
    from mcp_rollout.rollout.training.statistics import BatchStatistics, TrajectoryStatistics

    traces = [
        ended("shop", {"database": 1.0, "told": 0.0}),
        ended("shop", {"database": 0.0, "told": 0.0}),
        ended("quiz", {"exact": 1.0}),
        ended("shop", {"database": 1.0}, withdrawn=True),
    ]
    metrics = BatchStatistics([TrajectoryStatistics.of(trace) for trace in traces]).metrics()
    parts = {name: value for name, value in metrics.items() if name.startswith("mcp/reward/")}
    assert parts == {"mcp/reward/quiz/exact": 1.0, "mcp/reward/shop/database": 0.5, "mcp/reward/shop/told": 0.0}
    assert metrics["mcp/failed_share"] == 0.25


def test_the_score_counts_each_trajectory_that_was_not_withdrawn_once() -> None:
    from mcp_rollout.rollout.trace.segment import Segment
    from mcp_rollout.rollout.training.statistics import BatchStatistics, TrajectoryStatistics

    several, one, withdrawn = ended("shop", {}), ended("shop", {}), ended("shop", {}, withdrawn=True)
    several.earlier = [Segment(response_ids=[1], loss_mask=[1], logprobs=[0.0])] * 3
    several.reward = Reward(score=1.0)
    batch = BatchStatistics([TrajectoryStatistics.of(trace) for trace in (several, one, withdrawn)])
    assert batch.metrics()["mcp/score/mean"] == 0.5
    assert BatchStatistics([]).metrics()["mcp/score/mean"] == 0.0


def test_a_turn_that_continued_after_its_thinking_budget_was_not_interrupted() -> None:
    from mcp_rollout.rollout.training.statistics import TrajectoryStatistics
    from mcp_rollout.rollout.types import Attempt, Completion, Edit, Parsed

    def metric(*, generations: int, attempts: int) -> float:
        trace = ended("shop", {})
        trace.response_ids = []
        sampled = Completion(ids=[1, 1, 1], attempts=(Attempt(tokens=1, weights_version=4),) * attempts)
        trace.add_completion(sampled, Parsed(content=""), Edit(appended=[1, 1, 1]), mask_thinking=False)
        trace.turns[0].generations = generations
        return TrajectoryStatistics.of(trace).values["mcp/interrupted_turns"]

    assert [metric(generations=1, attempts=1), metric(generations=2, attempts=2)] == [0.0, 0.0]
    assert [metric(generations=1, attempts=2), metric(generations=2, attempts=3)] == [1.0, 1.0]


def test_marks_penalties_and_drift_are_counted_with_the_same_keys_for_every_batch() -> None:
    from structlog.testing import capture_logs

    from mcp_rollout.gateway.types import Content, ContentKind, ToolResult
    from mcp_rollout.rollout.trace.events import Mark, MarkKind
    from mcp_rollout.rollout.training.statistics import BatchStatistics, TrajectoryStatistics
    from mcp_rollout.rollout.types import Call, Completion, Edit, Parsed
    from mcp_rollout.rollout.verl.replay_buffer import report_drift

    def played(result: str, *marks: MarkKind, penalty: float = 0.0) -> Trace:
        trace = ended("shop", {})
        trace.response_ids, trace.reward = [], Reward(score=0.0, penalty=penalty)
        call = Call(name="look", arguments={"at": "it"})
        trace.add_completion(Completion(ids=[1]), Parsed(content=""), Edit(appended=[1]), mask_thinking=False)
        text = Content(kind=ContentKind.TEXT, text=result)
        trace.add_calls([call], [ToolResult(content=(text,))], servers=["shop"])
        trace.turns[0].marks = [Mark(kind=kind) for kind in marks]
        return trace

    traces = [
        played("new", MarkKind.VOID, MarkKind.VOID, MarkKind.MALFORMED_CALL, penalty=0.5),
        played("old", MarkKind.VOID),
    ]
    batch = BatchStatistics([TrajectoryStatistics.of(trace) for trace in traces])
    metrics = batch.metrics()
    assert (metrics["mcp/marks/void"], metrics["mcp/marks/malformed_call"], metrics["mcp/penalty"]) == (1.0, 0.5, 0.25)
    assert metrics["mcp/drifted_calls"] == 1.0 and batch.in_loss == 2
    assert metrics.keys() == BatchStatistics([]).metrics().keys()
    with capture_logs() as lines:
        report_drift(batch)
    (line,) = lines
    assert (line["calls"], line["tools"]) == (1, ["shop/look"])
    assert line["example"] == """shop/look {"at":"it"} gave 'new' and 'old'"""


def test_a_collector_that_no_sampler_takes_from_keeps_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    from mcp_rollout.rollout.training.statistics import TrajectoryStatistics
    from mcp_rollout.rollout.verl import batch_statistics

    monkeypatch.setattr(batch_statistics, "MOST_KEPT", 3)
    collector = batch_statistics.StatisticsCollector()

    def add(*groups: int) -> None:
        for group in groups:
            trace = ended("shop", {})
            trace.origin = Origin(uid=str(group))
            collector.add(TrajectoryStatistics.of(trace))

    def kept() -> list[Any]:
        return [one.group for one in collector.of().trajectories]

    add(1, 2, 3, 4)
    assert kept() == ["2", "3", "4"]
    collector.forget(["3"])
    add(5, 6)
    assert kept() == ["4", "5", "6"]
