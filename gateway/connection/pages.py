"""The pages of a server's list."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from mcp import MCPError
from pydantic_core import to_json

from mcp_rollout.gateway.connection.relay import ErrorAnswer, Json
from mcp_rollout.gateway.transport.delivery import GatewayAnswer

MAX_PAGES = 100


class TooLong(ValueError):
    """A list has more than is read of it."""


async def pages(ask: Callable[[Json], Awaitable[Json]], most_bytes: int) -> AsyncGenerator[Json]:
    """The pages of a list.

    Args:
        ask: Sends the request with these parameters.
        most_bytes: Of all pages together.

    Raises:
        TooLong: the list has more.
    """
    params: Json = {}
    seen, size = set[int](), 0
    for _ in range(MAX_PAGES):
        try:
            page = await ask(params)
        except (MCPError, ErrorAnswer) as error:
            unanswered = isinstance(error, MCPError) and isinstance(error.data, GatewayAnswer)
            if params.get("cursor") == "" and not unanswered:
                return  # many servers of earlier revisions end a list with an empty cursor, and some refuse it
            raise
        text = _as_json(page)
        size += len(text)
        if size > most_bytes:
            raise TooLong(f"the list has more than max_message_bytes ({most_bytes})")
        if hash(text) in seen:
            return
        yield page
        # Sent back as it came, whatever its type, since it is the server's own; a server may send them in a circle.
        cursor: Any = page.get("nextCursor")
        following = hash(_as_json(cursor))
        if cursor is None or following in seen:
            return
        seen |= {hash(text), following}
        params = {"cursor": cursor}


def _as_json(value: Any) -> bytes:
    try:
        return to_json(value)
    except ValueError:  # nested deeper than pydantic writes
        return json.dumps(value).encode()
