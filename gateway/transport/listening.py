"""Hearing of changed tools where the protocol has no unasked notifications (2026-07-28): a subscription held open."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import structlog
from mcp import Client, MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

log = structlog.get_logger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0


async def hear_tool_changes(
    client: Client, server: str, changed: Callable[[], None], clean: Callable[[str], str]
) -> None:
    """Call `changed` whenever the server announces other tools; runs until it is cancelled or there is nothing to hear.

    A subscription that was lost is opened again, and what happened in between counts as an announcement.

    Args:
        clean: Takes the server's secrets out of a text.
    """
    tools = client.server_capabilities.tools
    if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or tools is None or not tools.list_changed:
        return
    pause, heard = _FIRST_PAUSE_S, False
    while True:
        try:
            async with client.listen(tools_list_changed=True) as subscription:
                if heard:
                    changed()
                heard, pause = True, _FIRST_PAUSE_S
                async for _ in subscription:
                    changed()
                return
        except (MCPError, RuntimeError, OSError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            # A server may announce changes in its capabilities and have no subscriptions: it is looked at on reconnect.
            log.info("connection.not_listening", server=server, problem=clean(str(error)) or type(error).__name__)
            if not heard:
                return
        await anyio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE_S)
