"""A server in this process that exchanges lines: its calls take the direct path, and end with the connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import both_paths_server
import pytest
from clock import Clock
from mcp.server.mcpserver import MCPServer

from mcp_rollout import ConfigError, Gateway, GatewayConfig, Session
from mcp_rollout.gateway.errors import CallTimeout, GatewayError, ProtocolError
from mcp_rollout.mcp_servers.kit import InProcess
from mcp_rollout.mcp_servers.kit.direct.calls import DirectCalls

pytestmark = pytest.mark.anyio

CALLER: ContextVar[str] = ContextVar("CALLER", default="none")


@asynccontextmanager
async def leased(connect: Callable[..., Any] | None = None, **entry: Any) -> AsyncIterator[Session]:
    made = {"servers": {"world": {"factory": "unused:unused", "required": True, **entry}}}
    async with (
        Gateway(GatewayConfig.model_validate(made), connect=connect) as gateway,
        gateway.lease(trajectory="t", task=None, seed=1) as session,
    ):
        yield session


def create() -> InProcess:
    """The factory that `test_a_factory_of_the_config_may_return_one` names."""
    return InProcess(both_paths_server.create_server())


async def test_a_factory_of_the_config_may_return_one() -> None:
    async with leased(factory=f"{__name__}:create") as session:
        assert (await session.call("add", {"a": 2})).structured == {"result": 3}


async def no_server() -> int:
    return 1


@pytest.mark.parametrize(
    ("factory", "problem"),
    [
        (
            "in_process_absent:create",
            "cannot import in_process_absent: .*add the directory of the module",
        ),
        (f"{__name__}:absent", "has no function 'absent'"),
        (f"{__name__}:no_server", r"returned coroutine, which is not a server \(return an MCPServer"),
        ("builtins:int", "returned int, which is not a server"),
        ("exits:create", "cannot import exits: SystemExit"),
    ],
)
async def test_a_factory_that_makes_no_server_is_a_config_error(
    factory: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "exits.py").write_text("import sys\nsys.exit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=problem) as caught:
        async with leased(factory=factory):
            pass
    assert "servers.world.factory" in str(caught.value)


async def test_calls_take_the_direct_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(both_paths_server.COUNTED, "direct", 0)
    monkeypatch.setattr(DirectCalls, "answer", DirectCalls.answer)  # so that it is there again after the test
    both_paths_server.count_direct_calls()
    async with leased(lambda *_: create()) as session:
        for number in range(3):
            assert (await session.call("add", {"a": number})).structured == {"result": number + 1}
        failed = await session.call("fails", {"how": "otherwise"})
        assert failed.is_error and "secret" not in failed.text
        direct = (await session.call("how_many_were_direct", {})).structured
    assert direct == {"result": 5}


async def test_an_answer_longer_than_allowed_is_refused_and_the_connection_stays() -> None:
    async with leased(lambda *_: create(), max_message_bytes=10_000) as session:
        connection = session.connection("world")
        with pytest.raises(ProtocolError, match="max_message_bytes is 10000"):
            await session.call("repeats", {"text": "x" * 100, "times": 200})
        assert (await session.call("repeats", {"text": "x", "times": 2})).text == "xx"
        assert session.connection("world") is connection


async def test_what_a_tool_returns_is_a_copy() -> None:
    server, state = MCPServer("world", log_level="ERROR"), {"items": [1]}

    @server.tool()
    async def look() -> dict[str, Any]:
        """Look."""
        return state

    async with leased(lambda *_: InProcess(server)) as session:
        seen = (await session.call("look", {})).structured
        assert seen == {"items": [1]}
        seen["items"].append(2)
    assert state == {"items": [1]}


async def test_a_tool_does_not_see_its_callers_context_variables() -> None:
    server = MCPServer("world", log_level="ERROR")

    @server.tool()
    async def caller() -> str:
        """The caller."""
        return CALLER.get()

    async with leased(lambda *_: InProcess(server)) as session:
        token = CALLER.set("a trajectory")
        try:
            assert (await session.call("caller", {})).text == "none"
        finally:
            CALLER.reset(token)


async def test_a_call_beyond_its_deadline_is_cancelled_at_the_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    async with leased(lambda *_: create(), call_timeout_s=60) as session:
        with pytest.raises(CallTimeout):
            await clock.outlast(session.call("waits", {"key": "k"}), 60)
        with anyio.fail_after(50):
            while (await session.call("is_waiting", {"key": "k"})).structured != {"result": False}:
                await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize(
    "connect", [lambda *_: create(), lambda *_: both_paths_server.create_server()], ids=["kit", "sdk"]
)
async def test_a_tool_that_cancels_itself_cancels_neither_its_caller_nor_the_connection(
    connect: Callable[..., Any],
) -> None:
    async with leased(connect) as session:
        failed = await session.call("fails", {"how": "cancelled"})
        assert failed.is_error and failed.text == "the tool raised CancelledError"
        with anyio.move_on_after(0) as scope:
            await session.call("waits", {"key": "k"})
        assert scope.cancelled_caught
        assert (await session.call("add", {"a": 2})).structured == {"result": 3}


@pytest.mark.parametrize("cancelled", [False, True], ids=["closed", "cancelled"])
async def test_calls_in_progress_end_with_the_gateway(cancelled: bool) -> None:
    server, running, ended = MCPServer("world", log_level="ERROR"), anyio.Event(), anyio.Event()

    @server.tool()
    async def wait() -> str:
        """Wait."""
        running.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()
        return "never"

    async def call(session: Session) -> None:
        with pytest.raises(GatewayError):
            await session.call("wait", {})

    with anyio.fail_after(30):
        # Around the gateway, so that the call itself is not cancelled.
        async with anyio.create_task_group() as calls:
            with anyio.CancelScope() as scope:
                async with leased(lambda *_: InProcess(server)) as session:
                    calls.start_soon(call, session)
                    await running.wait()
                    if cancelled:
                        scope.cancel()
                        await anyio.sleep_forever()
        assert ended.is_set()
