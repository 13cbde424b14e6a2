"""A server with notes that a tool writes and another one reads, without any part in a harness."""

from __future__ import annotations

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations


def notes_server() -> MCPServer:
    """A table of notes, new in each server."""
    server, notes = MCPServer("notes", log_level="ERROR"), dict[str, str]()

    @server.tool(structured_output=False)
    async def write(name: str, text: str) -> str:
        notes[name] = text
        return "written"

    @server.tool(annotations=ToolAnnotations(read_only_hint=True), structured_output=False)
    async def read(name: str) -> str:
        if name not in notes:
            raise ToolError(f"there is no note {name}")
        return notes[name]

    return server
