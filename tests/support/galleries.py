"""A server whose tool answers with a picture."""

from __future__ import annotations

import base64
import io
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp_types import ImageContent, TextContent


def png(color: str, size: tuple[int, int] = (64, 40)) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", size, color).save(file, "PNG")
    return file.getvalue()


def gallery() -> MCPServer:
    server = MCPServer("gallery", log_level="ERROR")

    @server.tool(structured_output=False)
    def paint(color: str) -> list[TextContent | ImageContent]:
        """Paint."""
        data = base64.b64encode(png(color) if color != "broken" else b"no picture").decode()
        image = ImageContent(type="image", data=data, mime_type="image/png")
        return [TextContent(type="text", text=f"All {color}."), image]

    @server.tool(name="score", meta={"mcp-rollout/role": "score"})
    def score(messages: list[dict[str, Any]]) -> dict[str, Any]:
        assert all(isinstance(message["content"], str) for message in messages)
        return {"score": 1.0}

    return server
