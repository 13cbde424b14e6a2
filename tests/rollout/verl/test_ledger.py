"""What verl's loggers get of a batch."""

from __future__ import annotations

import pytest

from rollout.task import Origin, Task
from rollout.trace.record import Reward, StopReason, Trace

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
    from rollout.verl.ledger import Entry, summarise

    traces = [
        ended("shop", {"database": 1.0, "told": 0.0}),
        ended("shop", {"database": 0.0, "told": 0.0}),
        ended("quiz", {"exact": 1.0}),
        ended("shop", {"database": 1.0}, withdrawn=True),
    ]
    metrics = summarise([Entry.of(trace) for trace in traces]).metrics()
    parts = {name: value for name, value in metrics.items() if name.startswith("mcp/reward/")}
    assert parts == {"mcp/reward/quiz/exact": 1.0, "mcp/reward/shop/database": 0.5, "mcp/reward/shop/told": 0.0}
    assert metrics["mcp/failed_share"] == 0.25
