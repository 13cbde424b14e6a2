"""A trajectory's world as an MCP server: its tools, in both eras of the protocol, and no other request."""

from __future__ import annotations

from typing import Any, cast

from mcp import MCPError
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import (
    INVALID_REQUEST,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    TextContent,
    Tool,
)

from mcp_rollout.rollout.programs.program_session import ProgramSession

_CALL_IDS = ("callId", "claudecode/toolUseId")
"""In `_meta`: where programs write the id of the model's call."""


def world_of(session: ProgramSession, *, most_bytes: int) -> StreamableHTTPSessionManager:
    """The server of one trajectory, which has no sessions: what it keeps is the world's.

    A call's result is the text that the built-in agent would show the policy. Programs differ in whether they show
    structured content in its place, and images are not in the requests that are read here.
    """

    async def tools(context: Any, params: Any) -> ListToolsResult:
        listed = [
            Tool(name=name, description=tool["description"], input_schema=tool["parameters"])
            for name, tool in session.tools.items()
        ]
        return ListToolsResult(tools=listed)

    async def call(context: Any, params: CallToolRequestParams) -> CallToolResult:
        meta = cast("dict[str, Any]", params.meta or {})
        id = next((str(meta[key]) for key in _CALL_IDS if meta.get(key)), None)
        outcome = await session.call(params.name, dict(params.arguments or {}), id)
        if outcome is None:
            raise MCPError(code=INVALID_REQUEST, message=session.over or "the trajectory is over")
        shown, is_error = outcome
        return CallToolResult(content=[TextContent(type="text", text=shown.text)], is_error=is_error)

    server: Server[Any] = Server("world", on_list_tools=tools, on_call_tool=call)
    return StreamableHTTPSessionManager(server, stateless=True, json_response=True, max_request_body_size=most_bytes)
