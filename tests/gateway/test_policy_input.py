"""Arguments that JSON or a server cannot hold: faults that the policy reads, and messages that are still scored."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer
from serving import serving

from mcp_rollout import Gateway, GatewayConfig, Session
from mcp_rollout.gateway.schemas.extent import MOST_DIGITS, MOST_NESTED
from mcp_rollout.gateway.types import CallFault, Role

pytestmark = pytest.mark.anyio

MINI = Path(__file__).with_name("mini_server.py")


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


ODD: dict[str, Any] = {
    "65 levels": nested(65),
    "300 levels": nested(300),
    "half a surrogate pair": "\ud800",
    "half a pair in a name": {"\udfff": 1},
    "infinity": float("inf"),
    "no number": [float("nan")],
    "5,000 digits": 10**4999,
    "many integers of 4,000 digits": [10**3999] * 100,
    "5,000 digits below a name": {"a": [-(10**4999)]},
}


def written(arguments: Any) -> str:
    """The arguments as JSON; Python itself writes integers of up to 4,300 digits only."""
    try:
        return json.dumps(arguments)
    except ValueError:
        return '{"text": "x", "more": [%s]}' % ("1" * 5000)


def judge() -> MCPServer:
    server = MCPServer("judge", log_level="CRITICAL")

    @server.tool(structured_output=False)
    def put(text: str, more: Any = None) -> str:
        """Put."""
        return text

    @server.tool(meta={"mcp-rollout/role": "score"})
    def score(messages: list[Any]) -> dict[str, Any]:
        """Score."""
        return {"score": 1.0, "parts": {"messages": len(messages)}}

    return server


@asynccontextmanager
async def leased(transport: str) -> AsyncIterator[Session]:
    @asynccontextmanager
    async def entry() -> AsyncIterator[dict[str, Any]]:
        if transport == "stdio":
            yield {"command": sys.executable, "args": ["-I", "-S", str(MINI), "put", "score"], "required": True}
        else:
            async with serving(judge(), transport) as found:
                yield found

    async with (
        entry() as found,
        Gateway(GatewayConfig.model_validate({"servers": {"world": found}})) as gateway,
        gateway.lease(trajectory="t", task=None, seed=1) as session,
    ):
        yield session


async def works(session: Session) -> bool:
    return not (await session.call("put", {"text": "next"})).is_error


TRANSPORTS = pytest.mark.parametrize("transport", ["stdio", "http", "http-handshake", "sse"])


@TRANSPORTS
async def test_arguments_that_cannot_be_sent_are_a_fault_and_the_connection_serves_the_next_call(
    transport: str,
) -> None:
    async with leased(transport) as session:
        for what, value in ODD.items():
            for arguments in ({"text": "x", "more": value}, written({"text": "x", "more": value})):
                result = await session.call("put", arguments)
                assert result.is_error and result.fault is CallFault.INVALID_ARGUMENTS, what
                result.text.encode()  # what the policy reads can be written down
            assert await works(session), what
        for most in (nested(MOST_NESTED - 1), 10**MOST_DIGITS - 1):
            assert not (await session.call("put", {"text": "x", "more": most})).is_error


@TRANSPORTS
async def test_a_call_of_an_unknown_tool_is_that_fault_whatever_its_arguments(transport: str) -> None:
    async with leased(transport) as session:
        for value in ODD.values():
            assert (await session.call("nowhere", {"more": value})).fault is CallFault.UNKNOWN_TOOL
        assert await works(session)


@TRANSPORTS
async def test_messages_that_hold_such_arguments_are_scored(transport: str) -> None:
    async with leased(transport) as session:
        for what, value in ODD.items():
            call = {"type": "function", "function": {"name": "put", "arguments": {"text": "x", "more": value}}}
            messages = [{"role": "assistant", "content": "", "tool_calls": [call]}]
            answer = await session.invoke(Role.SCORE, {"messages": messages}, server="world")
            assert answer.structured and "score" in answer.structured, what
            assert await works(session), what
