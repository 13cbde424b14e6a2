"""Limits of trajectories while their engine is taken from them: the clock stands still, and goes on where it stood."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import clock as loop_clock
import pytest
from mcp.server.mcpserver import MCPServer
from worlds import play

from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.rollout.environment.sections import TreeConfig
from mcp_rollout.rollout.environment.task import Origin
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.loop.clock import Clock
from mcp_rollout.rollout.loop.group import Group
from mcp_rollout.rollout.loop.limits import Limits, shielded
from mcp_rollout.rollout.tokens.chatml import IM_END, ByteTokens
from mcp_rollout.rollout.trace.record import StopReason, Trace
from mcp_rollout.rollout.types import Call, Completion, Policy

pytestmark = pytest.mark.anyio
HOUR = 3600.0


class Held:
    """Generates once for ten seconds, and an hour longer in which a trainer holds the engine; then it answers."""

    def __init__(self, loop: loop_clock.Clock, hold: Callable[[], None], release: Callable[[], None]) -> None:
        self._loop, self._hold, self._release = loop, hold, release

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        if turn == 0:
            await shielded(self._interrupted())
        said = hermes.write(calls=[Call(name="hello", arguments={})]) if turn == 0 else "Done."
        sampled = ByteTokens().encode(said + IM_END)
        return Completion(ids=sampled, logprobs=[0.0] * len(sampled))

    async def _interrupted(self) -> None:
        await self._loop.advance(5)
        self._hold()
        await self._loop.advance(HOUR)
        self._release()
        await self._loop.advance(5)


async def played(directory: Path, patched: pytest.MonkeyPatch, *, stops: bool, wall_clock_s: float = 60.0) -> Trace:
    clock, world = Clock(), MCPServer("world", log_level="ERROR")

    @world.tool()
    async def hello() -> str:
        """Greets."""
        return "Hello."

    loop = loop_clock.Clock(patched)

    async def policy_for(_: Session) -> Policy:
        return Held(loop, clock.stop if stops else lambda: None, clock.start)

    limits = Limits(response_tokens=5000, wall_clock_s=wall_clock_s)
    with anyio.fail_after(10 * HOUR):
        return await play({"world": world}, policy_for, directory, limits=limits, clock=clock)


async def test_what_a_trainers_step_takes_is_neither_a_trajectorys_time_nor_a_generations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = await played(tmp_path, monkeypatch, stops=True)
    assert trace.stop_reason is StopReason.ANSWERED and len(trace.turns) == 2
    assert 10 <= trace.turns[0].generate_s < 60


async def test_a_clock_that_is_not_stopped_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = await played(tmp_path, monkeypatch, stops=False)
    assert trace.stop_reason is StopReason.TIME_LIMIT and trace.turns[0].generate_s >= HOUR


async def test_the_time_before_and_after_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = await played(tmp_path, monkeypatch, stops=True, wall_clock_s=8.0)
    assert trace.stop_reason is StopReason.TIME_LIMIT


async def test_a_branch_does_not_give_up_its_root_while_the_clock_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, clock = loop_clock.Clock(monkeypatch), Clock()
    group, found = Group(2, clock=clock), list[object]()
    group.record(0, "root")
    clock.stop()

    async def branch() -> None:
        found.append(await group.branch(Origin(sample=1), TreeConfig(roots=1, wait_timeout_s=60)))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(branch)
        await loop.advance(HOUR)
        clock.start()
        await loop.advance(59)
        assert not found
        await loop.advance(2)
    assert found == ["no root had a turn to branch at within 60 s"]
