"""JSON-RPC errors of tools, whatever their code and text: results for the policy to read, which end nothing."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import mcp_types as mcp
import pytest
from mcp import MCPError
from mcp.server.lowlevel import Server
from serving import handshake_only, listening

from mcp_rollout import Gateway, GatewayConfig

pytestmark = pytest.mark.anyio

ERRORS = [
    (-32600, "Session terminated"),
    (-32000, "Connection closed"),
    (-32000, "the disk is full"),
    (-32600, "no such order"),
    (-32001, "Request timed out"),
    (-32603, "Server returned an error response"),
]
STDIO = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    request, method = message.get("id"), message.get("method")
    if request is None:
        continue
    answer = {"error": {"code": -32601, "message": "no such method"}}
    if method == "initialize":
        info = {"name": "errors", "version": "1"}
        answer = {"result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}}
    elif method == "tools/list":
        answer = {"result": {"tools": [{"name": "fail", "inputSchema": {"type": "object"}}]}}
    elif method == "tools/call":
        arguments = message["params"]["arguments"]
        answer = {"error": arguments} if arguments else {"result": {"content": [{"type": "text", "text": "fine"}]}}
    print(json.dumps({"jsonrpc": "2.0", "id": request, **answer}), flush=True)
"""


def server() -> Server[Any]:
    async def listed(_: Any, __: Any) -> mcp.ListToolsResult:
        return mcp.ListToolsResult(tools=[mcp.Tool(name="fail", input_schema={"type": "object"})])

    async def called(_: Any, params: mcp.CallToolRequestParams) -> mcp.CallToolResult:
        if params.arguments:
            raise MCPError(**params.arguments)
        return mcp.CallToolResult(content=[mcp.TextContent(type="text", text="fine")])

    return Server("errors", on_list_tools=listed, on_call_tool=called)


@asynccontextmanager
async def serving(transport: str) -> AsyncIterator[tuple[dict[str, Any], Any]]:
    """An entry, and what `connect=` returns for it."""
    if transport == "stdio":
        yield {"command": sys.executable, "args": ["-I", "-S", "-c", STDIO]}, None
    elif transport == "in process":
        yield {"factory": "unused:unused"}, server()
    else:
        app: Any = server().streamable_http_app()
        async with listening(app if transport == "http" else handshake_only(app)) as address:
            yield {"url": f"{address}/mcp"}, None


@pytest.mark.parametrize("transport", ["stdio", "http", "http-handshake", "in process"])
async def test_no_code_and_no_text_of_a_tools_error_is_taken_for_a_fault_of_the_line(transport: str) -> None:
    async with serving(transport) as (entry, target):
        config = GatewayConfig.model_validate({"servers": {"world": {"required": True, **entry}}})
        async with (
            Gateway(config, connect=lambda *_: target) as gateway,
            gateway.lease(trajectory="a", task=None, seed=1) as session,
            gateway.lease(trajectory="b", task=None, seed=1) as other,
        ):
            connection = session.connection("world")
            for code, text in ERRORS:
                result = await session.call("fail", {"code": code, "message": text})
                assert result.is_error and result.text == text
            assert session.connection("world") is connection and connection.alive
            with anyio.fail_after(20):
                assert (await other.call("fail", {})).text == "fine"
