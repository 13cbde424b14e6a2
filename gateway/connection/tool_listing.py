"""List a server's tools, and watch for changes of the list.

mcp parses a page as a whole, so one malformed tool would hide all others on it. Here it is left out and reported."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import anyio
import anyio.lowlevel
import mcp_types as mcp
import structlog
from mcp import Client, MCPError
from mcp.client.session import ClientSession
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from gateway.transport.wire import Listing, read_tools, well_formed_tools
from gateway.types import Role, ToolDefinition

log = structlog.get_logger(__name__)

_MAX_PAGES = 100
_TOOLS_AT_ONCE = 500
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0


async def raw_tools(session: ClientSession, most_bytes: int) -> list[Any]:
    """All pages of `tools/list` up to a number of bytes in all, not parsed beyond JSON."""
    tools: list[Any] = []
    size = 0
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        page = await _raw_page(session, cursor)
        listed, cursor = page.get("tools"), page.get("nextCursor")
        tools += cast("list[Any]", listed) if isinstance(listed, list) else []
        size += len(json.dumps(page, ensure_ascii=False))
        if not isinstance(cursor, str) or size > most_bytes:
            break
    return tools


async def list_definitions(
    session: ClientSession, server: str, roles: Mapping[str, Role], most_bytes: int, last: Listing
) -> tuple[list[ToolDefinition], list[str]]:
    """The definitions of the server's tools, and one message for each tool that is left out.

    Connections whose listings are equal get the same definitions, which cost more than half of a connection otherwise.

    Args:
        roles: By tool name, as `read_tools`.
        last: Of the server, by any connection to it; replaced where it differs.
    """
    listed, faults = await list_tools(session, most_bytes)
    if last.listed == listed:
        return list(last.tools), faults + list(last.faults)
    of_pages = len(faults)
    tools, seen = list[ToolDefinition](), set[str]()
    for start in range(0, len(listed), _TOOLS_AT_ONCE):
        await anyio.lowlevel.checkpoint()  # reading thousands of definitions at once would stop the event loop
        more, more_faults = read_tools(server, listed[start : start + _TOOLS_AT_ONCE], roles, seen)
        tools += more
        faults += more_faults
    last.listed, last.tools, last.faults = listed, tuple(tools), tuple(faults[of_pages:])
    return tools, faults


async def list_tools(session: ClientSession, most_bytes: int) -> tuple[list[mcp.Tool], list[str]]:
    """All pages of the server's tools, and one message for each malformed tool.

    Args:
        most_bytes: Of all pages together. A page that exceeds them is left out with all that follow, and reported.
    """
    tools: list[mcp.Tool] = []
    faults: list[str] = []
    cursor: str | None = None
    seen: set[str] = set()
    size = 0
    for _ in range(_MAX_PAGES):
        params = mcp.PaginatedRequestParams(cursor=cursor) if cursor else None
        try:
            page = await session.list_tools(params=params)
            await anyio.lowlevel.checkpoint()  # mcp has just read thousands of tools at once; so does what follows
            size += len(page.model_dump_json(by_alias=True, exclude_unset=True))
            found, more, cursor = page.tools, list[str](), page.next_cursor
        except MCPError as error:
            if error.code == mcp.METHOD_NOT_FOUND:
                break  # a server without tools need not implement the method
            raise
        except ValueError:  # does not fit the protocol, or is nested deeper than mcp's models allow
            await anyio.lowlevel.checkpoint()
            raw = await _raw_page(session, cursor)
            size += len(json.dumps(raw, ensure_ascii=False))
            await anyio.lowlevel.checkpoint()
            found, more, cursor = _read_leniently(session, raw)
        await anyio.lowlevel.checkpoint()
        if size > most_bytes:
            faults.append(
                f"its definitions have more than max_message_bytes ({most_bytes}); {len(tools)} tools are used"
            )
            break
        tools += found
        faults += more
        if not cursor or cursor in seen:
            break
        seen.add(cursor)
    return tools, faults


def _read_leniently(session: ClientSession, raw: dict[str, Any]) -> tuple[Sequence[mcp.Tool], list[str], str | None]:
    tools, faults = well_formed_tools(raw, session.protocol_version or "2025-11-25")
    page = mcp.ListToolsResult(tools=list(tools))
    # mcp then knows which arguments of these tools travel in HTTP headers.
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


async def watch_tool_changes(
    client: Client, server: str, changed: Callable[[], None], redact: Callable[[str], str]
) -> None:
    """Call `changed` whenever the server announces a change; runs until cancelled, or until it has nothing to watch.

    The 2026-07-28 protocol has no unsolicited notifications, so a subscription is held open; earlier ones need none. A
    subscription that was lost is opened again, and the time in between counts as a change.

    Args:
        redact: Replaces the server's secrets in a text.
    """
    tools = client.server_capabilities.tools
    if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or tools is None or not tools.list_changed:
        return
    pause, subscribed = _FIRST_PAUSE_S, False
    while True:
        try:
            async with client.listen(tools_list_changed=True) as subscription:
                if subscribed:
                    changed()
                subscribed, pause = True, _FIRST_PAUSE_S
                async for _ in subscription:
                    changed()
                return
        except (MCPError, RuntimeError, OSError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            # A server may announce the capability without supporting it; its tools are compared at the next connection.
            log.info("connection.not_listening", server=server, problem=redact(str(error)) or type(error).__name__)
            if not subscribed:
                return
        await anyio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE_S)
