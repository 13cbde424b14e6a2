"""A trajectory that has ended is freed at once, however it ended: no cycle keeps it for the garbage collector."""

from __future__ import annotations

import gc
import math
from collections.abc import Generator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.server.mcpserver import MCPServer
from worlds import environment, opened, task

from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.rollout.engines.scripted import ScriptedPolicy
from mcp_rollout.rollout.environment.task import Origin
from mcp_rollout.rollout.errors import EngineError
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.loop.trajectory import roll_out
from mcp_rollout.rollout.tokens.chatml import IM_END, ByteTokens
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.store import TraceStore, read_traces
from mcp_rollout.rollout.types import Call, Completion, Policy

pytestmark = pytest.mark.anyio
PLAYED = 3


def server() -> MCPServer:
    made = MCPServer("world", log_level="ERROR")

    @made.tool()
    async def hello() -> str:
        """Greets."""
        return "Hello."

    @made.tool()
    async def fail() -> str:
        """Fails."""
        raise ValueError("no")

    @made.tool()
    async def wait() -> str:
        """Never answers."""
        await anyio.sleep_forever()
        raise AssertionError

    return made


class Breaking(ScriptedPolicy):
    """Raises in its second turn."""

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        if turn:
            raise EngineError("broken")
        return await super().generate(ids, max_tokens=max_tokens, turn=turn)


def calling(name: str) -> str:
    return hermes.write(calls=[Call(name=name, arguments={})])


def traces() -> int:
    """How many this process has; other tests may have left some."""
    # Not `isinstance`: it asks objects for their class, and some of torch's warn then.
    return sum(type(each) is Trace for each in gc.get_objects())


@pytest.fixture
def without_collector() -> Generator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


WAYS: dict[str, tuple[type[ScriptedPolicy], list[str], dict[str, Any]]] = {
    "answered": (ScriptedPolicy, [calling("hello"), "Done."], {}),
    "failed calls": (ScriptedPolicy, [calling("fail"), calling("nothing"), "<tool_call>{", "Done."], {}),
    "call timeout": (ScriptedPolicy, [calling("wait"), "Done."], {"call_timeout_s": 0.1}),
    "time limit": (ScriptedPolicy, [calling("wait"), "Done."], {"wall_clock_s": 0.1}),
    "token limit": (ScriptedPolicy, [calling("hello"), "Done."], {"response_tokens": 60}),
    "engine error": (Breaking, [calling("hello")], {}),
}


@pytest.mark.parametrize("way", WAYS)
async def test_a_trajectory_that_has_ended_is_freed_without_a_collection(
    way: str, tmp_path: Path, without_collector: None
) -> None:
    kind, texts, bounds = WAYS[way]
    call_timeout_s = bounds.get("call_timeout_s", 60)
    limits = Limits(
        wall_clock_s=bounds.get("wall_clock_s", math.inf), response_tokens=bounds.get("response_tokens", 20_000)
    )

    async def policy_for(_: Session) -> Policy:
        return kind(texts, ByteTokens().encode, stop=IM_END)

    world = server()
    made = environment({"world": world})
    entry = made.servers["world"].model_copy(update={"call_timeout_s": call_timeout_s})
    made = made.model_copy(update={"servers": {"world": entry}})
    before = traces()
    async with opened(made, {"world": world}) as gateway:
        for number in range(PLAYED):
            await roll_out(
                Trace.begin(f"t{number}", task(), Origin()),
                environment=made,
                gateway=gateway,
                policy_for=policy_for,
                tokens=ByteTokens(),
                limits=limits,
                store=TraceStore(tmp_path),
            )
        assert traces() <= before
    assert len(list(read_traces(tmp_path))) == PLAYED
