"""The leaderboard's tasks over the gateway: what is scored equals what the package's own checker says."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from random import Random

import pytest
from bfcl_players import decoded, perturbed, scripted, texts, verdicts
from playing import Stage, score_of, staged

from mcp_rollout.gateway.types import CallFault
from mcp_rollout.mcp_servers import bfcl
from mcp_rollout.mcp_servers.bfcl.package import CATEGORIES
from mcp_rollout.rollout.environment.task import Task
from mcp_rollout.rollout.trace.record import StopReason, Trace

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(900)]

Stages = dict[str, Stage]
REASONS = {
    None,
    "multi_turn:instance_state_mismatch",
    "multi_turn:execution_response_mismatch",
    "multi_turn:empty_turn_model_response",
}
FULL = [pytest.param(False, id="slice"), pytest.param(True, id="all", marks=pytest.mark.full)]


@pytest.fixture(scope="module")
async def stages(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stages]:
    async with AsyncExitStack() as stack:
        yield {
            category: await stack.enter_async_context(
                staged(
                    f"bfcl:category={category}",
                    tmp_path_factory.mktemp(category),
                    within={"bfcl": bfcl.create_server(category=category)},
                )
            )
            for category in CATEGORIES
        }


async def chosen(stages: Stages, count: int, seed: str) -> list[tuple[Stage, Task]]:
    """As many tasks as `count`, of all categories in turn; some more than once if there are not enough."""
    rng = Random(seed)
    by_stage: list[list[tuple[Stage, Task]]] = []
    for stage in stages.values():
        tasks = await stage.tasks("all")
        by_stage.append([(stage, task) for task in rng.sample(tasks, len(tasks))])
    every = [each for group in zip(*by_stage, strict=True) for each in group]
    return [every[at % len(every)] for at in range(count)]


def ordered(text: str) -> str:
    """A result with the sets that it quotes in order: their order differs between two processes."""
    return re.sub(r"\{('[^{}]*')\}", lambda quoted: "{" + ", ".join(sorted(quoted[1].split(", "))) + "}", text)


def read_by_policy(trace: Trace) -> list[str | None]:
    """The results of all calls; None for a refused one, which has the gateway's words."""
    return [
        None if event.fault is CallFault.UNKNOWN_TOOL else event.text for turn in trace.turns for event in turn.tools
    ]


@pytest.mark.parametrize("full", FULL)
async def test_the_ground_truth_scores_one(stages: Stages, full: bool) -> None:
    for stage, task in await chosen(stages, 800 if full else 40, "expert"):
        trace = await stage.play(task, stage.engine("expert", task))
        assert score_of(trace) == 1.0 and trace.reward is not None and trace.reward.parts == {"user_turns": 1.0}, task
        assert trace.stop_reason is StopReason.USER_DONE


@pytest.mark.parametrize("full", FULL)
async def test_a_perturbed_trajectory_gets_the_verdict_of_the_package(stages: Stages, full: bool) -> None:
    played, changes = [], Counter[str]()
    for number, (stage, task) in enumerate(await chosen(stages, 2000 if full else 60, "perturbed")):
        rng = Random(f"{task.task} {number}")
        turns, done = perturbed(task.task, rng)
        changes.update(done)
        trace = await stage.play(task, scripted(texts(turns, rng)))
        played.append((trace, done))
    said = verdicts((trace.task.task, decoded(trace)) for trace, _ in played)
    for (trace, done), verdict in zip(played, said, strict=True):
        assert score_of(trace) == float(verdict["valid"]), (trace.task.task, done, verdict)
        # The package stops at the first user turn that fails.
        read = read_by_policy(trace)
        assert len(read) >= len(verdict["results"])
        for mine, theirs in zip(read, verdict["results"], strict=False):
            assert mine is None or ordered(mine) == ordered(theirs), (trace.task.task, done)
    # Every verdict and every change occurs, so agreement means something.
    assert {verdict["error"] for verdict in said} >= REASONS
    assert len(changes) == 8
