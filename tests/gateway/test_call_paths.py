"""The two ways of `tools/call` are told apart: what `both_call_paths` runs a test over is what its ids say."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer
from serving import serving

from gateway import Gateway, GatewayConfig
from gateway.transport.http_calls import HttpCalls
from gateway.transport.line_calls import LineCalls
from mcp_servers.kit import InProcess

pytestmark = pytest.mark.anyio


def echoing() -> MCPServer:
    server = MCPServer("world", log_level="ERROR")
    server.add_tool(lambda text: text, name="echo", description="Returns its text.")
    return server


@asynccontextmanager
async def served(transport: str, mini: Callable[..., dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    if transport == "in_lines":
        yield {"factory": "unused:unused", "required": True}
    elif transport == "stdio":
        yield mini("echo")
    else:
        async with serving(echoing(), transport) as entry:
            yield entry


@pytest.mark.usefixtures("both_call_paths")
@pytest.mark.parametrize("transport", ["in_lines", "stdio", "http", "http-handshake"])
async def test_calls_take_the_path_that_the_tests_id_names(
    transport: str,
    mini: Callable[..., dict[str, Any]],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = list[type]()
    for channel in (LineCalls, HttpCalls):

        def noting(self: Any, *given: Any, send: Any = channel.send) -> Any:
            sent.append(type(self))
            return send(self, *given)

        monkeypatch.setattr(channel, "send", noting)
    async with served(transport, mini) as entry:
        config = GatewayConfig.model_validate({"servers": {"world": entry}})
        connect = (lambda *_: InProcess(echoing())) if transport == "in_lines" else None
        async with Gateway(config, connect=connect) as opened:
            async with opened.lease(trajectory="t", task=None, seed=1) as session:
                texts = [(await session.call("echo", {"text": text})).text for text in "ab"]
    assert texts == ["a", "b"]
    expected = HttpCalls if transport.startswith("http") else LineCalls
    assert sent == ([] if "[mcps_session" in request.node.name else [expected] * 2)
