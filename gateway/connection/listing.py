"""A server's tools, page by page: what mcp cannot parse costs the tool that it is in, and no other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import mcp_types as mcp
from mcp import MCPError
from mcp.client.session import ClientSession

from gateway.transport.wire import well_formed_tools

_MAX_PAGES = 100


async def raw_tools(session: ClientSession) -> list[Any]:
    """All pages of `tools/list`, not parsed beyond JSON."""
    tools: list[Any] = []
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        page = await _raw_page(session, cursor)
        listed, cursor = page.get("tools"), page.get("nextCursor")
        tools += cast("list[Any]", listed) if isinstance(listed, list) else []
        if not isinstance(cursor, str):
            break
    return tools


async def list_tools(session: ClientSession) -> tuple[list[mcp.Tool], list[str]]:
    """All pages of the server's tools; a malformed tool costs itself only and is reported."""
    tools: list[mcp.Tool] = []
    faults: list[str] = []
    cursor: str | None = None
    seen: set[str] = set()
    for _ in range(_MAX_PAGES):
        params = mcp.PaginatedRequestParams(cursor=cursor) if cursor else None
        try:
            page = await session.list_tools(params=params)
            found, more, cursor = page.tools, list[str](), page.next_cursor
        except MCPError as error:
            if error.code == mcp.METHOD_NOT_FOUND:
                break  # a server without tools need not know the method
            raise
        except ValueError:  # off the protocol, or nested deeper than mcp's models go
            found, more, cursor = await _list_leniently(session, cursor)
        tools += found
        faults += more
        if not cursor or cursor in seen:
            break
        seen.add(cursor)
    return tools, faults


async def _list_leniently(
    session: ClientSession, cursor: str | None
) -> tuple[Sequence[mcp.Tool], list[str], str | None]:
    raw = await _raw_page(session, cursor)
    tools, faults = well_formed_tools(raw, session.protocol_version or "2025-11-25")
    page = mcp.ListToolsResult(tools=list(tools))
    # So that annotations which travel in HTTP headers are known for these tools too.
    session._absorb_tool_listing(page, complete=False)  # pyright: ignore[reportPrivateUsage]
    cursor_out = raw.get("nextCursor")
    return page.tools, faults, cursor_out if isinstance(cursor_out, str) else None


async def _raw_page(session: ClientSession, cursor: str | None) -> dict[str, Any]:
    # mcp parses a page as a whole; below that there is only the private request path.
    data: dict[str, Any] = {"method": "tools/list", "params": {"cursor": cursor} if cursor else {}}
    options: dict[str, Any] = {}
    session._stamp(data, cast("Any", options))  # pyright: ignore[reportPrivateUsage]
    return await session._dispatcher.send_raw_request(  # pyright: ignore[reportPrivateUsage]
        "tools/list", data["params"], cast("Any", options)
    )
