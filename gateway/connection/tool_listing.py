"""List a server's tools, and watch for changes of the list.

mcp parses a page as a whole, so one malformed tool would hide all others on it. Here it is left out and reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import anyio
import anyio.lowlevel
import mcp_types as mcp
import structlog
from mcp import Client, MCPError
from mcp.client.session import ClientSession
from mcp_types.version import LATEST_HANDSHAKE_VERSION, MODERN_PROTOCOL_VERSIONS

from mcp_rollout.gateway import sdk
from mcp_rollout.gateway.connection.pages import MAX_PAGES, TooLong, pages
from mcp_rollout.gateway.transport.delivery import GatewayAnswer
from mcp_rollout.gateway.transport.messages import MOST_TOOLS
from mcp_rollout.gateway.transport.tool_definitions import Listing, read_tools, well_formed_tools
from mcp_rollout.gateway.types import Role, ToolDefinition

log = structlog.get_logger(__name__)

_TOOLS_AT_ONCE = 200
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0


async def raw_tools(session: ClientSession, most_bytes: int) -> list[Any]:
    """All pages of `tools/list` up to a number of bytes in all, not parsed beyond JSON."""
    return [tool for page in (await _raw_pages(session, most_bytes))[0] for tool in _tools_of(page)]


async def list_definitions(
    session: ClientSession, server: str, roles: Mapping[str, Role], most_bytes: int, last: Listing
) -> tuple[list[ToolDefinition], list[str]]:
    """The definitions of the server's tools, and one message for each tool that is left out.

    Connections whose listings are equal share one copy of it, here and in mcp's session: reading them costs more than
    half of a connection otherwise, and keeping them most of its memory.

    Args:
        roles: By tool name, as `read_tools`.
        most_bytes: Of all pages together. A page that exceeds them is left out with all that follow, and reported.
        last: Of the server, by any connection to it; replaced where it differs.
    """
    found, faults = await _raw_pages(session, most_bytes)
    version = session.protocol_version or LATEST_HANDSHAKE_VERSION
    if last.version == version and _is_same(last.pages, found):
        sdk.header_maps(session).update(last.headers)
        return list(last.tools), faults + list(last.faults)
    sdk.warn_of_unknown()
    tools, of_tools, used, seen = list[ToolDefinition](), list[str](), set[str](), set[str]()
    for page in found:
        listed = _tools_of(page)
        for start in range(0, len(listed), _TOOLS_AT_ONCE):
            await anyio.lowlevel.checkpoint()  # reading thousands of definitions at once would stop the event loop
            well_formed, malformed = well_formed_tools(listed[start : start + _TOOLS_AT_ONCE], version)
            usable = sdk.learn(session, well_formed)
            more, unusable = read_tools(server, usable, roles, seen)
            tools, of_tools = tools + more, of_tools + malformed + unusable
            used.update(tool.name for tool in usable)
    last.pages, last.version = found, version
    last.tools, last.faults = tuple(tools), tuple(of_tools)
    maps = sdk.header_maps(session)
    last.headers = {name: maps[name] for name in used if name in maps}
    return tools, faults + of_tools


async def _raw_pages(session: ClientSession, most_bytes: int) -> tuple[list[dict[str, Any]], list[str]]:
    """The pages of a listing as far as they are used, and what is left out of it."""
    found, count, left_out, cursor = list[dict[str, Any]](), 0, "", None
    try:
        async for page in pages(lambda params: sdk.list_page(session, params.get("cursor")), most_bytes):
            await anyio.lowlevel.checkpoint()  # the page was parsed in this step
            more, cursor = len(_tools_of(page)), page.get("nextCursor")
            if count + more > MOST_TOOLS:
                raise TooLong(f"the list has more than {MOST_TOOLS} tools")
            found.append(page)
            count += more
        if cursor is not None and len(found) == MAX_PAGES:
            left_out = f"the list has more than {MAX_PAGES} pages"
    except TooLong as error:
        left_out = str(error)
    except MCPError as error:
        if error.code != mcp.METHOD_NOT_FOUND:  # which a server without tools need not implement
            if cursor is None or isinstance(cursor, str) or isinstance(error.data, GatewayAnswer):
                raise
            left_out = f"its list goes on at the cursor {cursor!r:.80}, which it refuses"
    return found, [f"{left_out}; {count} tools are used"] if left_out else []


def _is_same(page: object, other: object) -> bool:
    try:
        return page == other
    except RecursionError:
        return False


def _tools_of(page: Mapping[str, Any]) -> list[Any]:
    tools: Any = page.get("tools")
    if not isinstance(tools, list):
        raise MCPError(mcp.INTERNAL_ERROR, "the result of tools/list has no list of tools")
    return cast("list[Any]", tools)


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
