"""The activities of trajectories in flight: counted once each, with rates, errors, servers and rewards."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from worlds import environment, opened, saying, task

from mcp_rollout.rollout.cli.live import line_of
from mcp_rollout.rollout.environment.task import Origin
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.loop.trajectory import roll_out
from mcp_rollout.rollout.tokens.chatml import ByteTokens
from mcp_rollout.rollout.trace.activity import Activity, Oldest, Rewards
from mcp_rollout.rollout.trace.heartbeat import SUFFIX, Beat, watched
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.store import TraceStore
from mcp_rollout.rollout.types import Call

pytestmark = pytest.mark.anyio


def wants(name: str, **arguments: object) -> str:
    return hermes.write(calls=[Call(name=name, arguments=dict(arguments))])


async def test_a_trajectory_is_counted_turn_by_turn_and_once(tmp_path: Path) -> None:
    server, at_last, go_on = MCPServer("world", log_level="ERROR"), anyio.Event(), anyio.Event()

    @server.tool()
    async def fine() -> str:
        """Fine."""
        return "fine"

    @server.tool()
    async def refuse() -> str:
        """Refuse."""
        raise ToolError("no")

    @server.tool()
    async def wait() -> str:
        """Wait."""
        at_last.set()
        await go_on.wait()
        return "over"

    made, store = environment({"world": server}), TraceStore(tmp_path)
    texts = [wants("fine"), wants("refuse"), wants("nothing"), wants("wait"), "Done."]
    seen: list[Activity] = []

    async def look() -> None:
        await at_last.wait()
        store.heartbeat.close()  # writes the file, as the timer does
        seen.extend([store.heartbeat.progress.activity(), watched(tmp_path)[0]])
        go_on.set()

    async with opened(made, {"world": server}) as gateway, anyio.create_task_group() as tasks:
        tasks.start_soon(look)
        trace = await roll_out(
            Trace.begin("t" * 32, task(), Origin(step=4)),
            environment=made,
            gateway=gateway,
            policy_for=saying(*texts),
            tokens=ByteTokens(),
            limits=Limits(response_tokens=20_000),
            store=store,
        )
    for activity in seen:
        assert (activity.in_flight, activity.finished, activity.turns, activity.calls) == (1, 0, 3, 3)
        assert activity.errors == {"tool_error": 1, "unknown_tool": 1}
        assert activity.oldest is not None and activity.oldest.turns == 4
        assert activity.tokens == sum(turn.sampled for turn in trace.turns[:3])
    store.close()
    after, at_work = watched(tmp_path)
    assert (after.in_flight, after.finished, after.turns, after.calls, at_work) == (0, 1, 5, 4, 0)
    assert after.servers["world"].calls == 3 and after.slowest is not None
    assert after.servers["world"].total_s == pytest.approx(sum(e.elapsed_s for t in trace.turns for e in t.tools))
    assert after.rewards.count == 1 and after.steps == {4: Rewards(count=1, total=0.0)}
    assert after.rates.turns == 0.0


async def test_a_process_that_was_killed_has_nothing_in_flight(tmp_path: Path) -> None:
    def beat(process: str, at: float, **more: object) -> None:
        activity = Activity.model_validate({"at": at, "in_flight": 2, "finished": 3, "rates": {"turns": 1.5}, **more})
        text = Beat(process=process, interval_s=2.0, activity=activity).model_dump_json()
        (tmp_path / process).mkdir()
        (tmp_path / process / f"{process}{SUFFIX}").write_text(text)

    beat("a", 1000.0, failed={"call_timeout": 1})
    beat("b", 995.0, failed={"call_timeout": 2, "engine_error": 1})
    beat("c", 900.0, rewards={"count": 3, "total": 1.5})
    (tmp_path / f"d{SUFFIX}").write_text("{")
    total, at_work = watched(tmp_path, now=1001.0)
    assert (total.in_flight, total.finished, total.rates.turns, at_work) == (4, 9, 3.0, 2)
    assert total.failed == {"call_timeout": 3, "engine_error": 1} and total.rewards.mean == 0.5
    assert line_of(total, total=20).startswith("9 of 20 done, 4 in flight; per second: 3.0 turns, 0.0 calls, 0 tokens")
    assert "failed: 3 call_timeout, 1 engine_error" in line_of(total)
    total.oldest = Oldest(id="i", task="red \x1b[31m", turns=1, elapsed_s=2.0)
    assert "longest: red <U+001B>[31m 2 s, 1 turns" in line_of(total)
