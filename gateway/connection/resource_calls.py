"""A server's resources and prompts as tool results, and the pages of its lists."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, cast

import mcp_types as mcp
from mcp import MCPError
from mcp.client.session import ClientSession
from pydantic_core import to_json

from mcp_rollout.gateway.connection.relay import ErrorAnswer, Json
from mcp_rollout.gateway.transport.delivery import GatewayAnswer
from mcp_rollout.gateway.types import READ_RESOURCE

MAX_PAGES = 100


async def fetch(
    session: ClientSession, name: str, arguments: Mapping[str, Any], *, meta: Mapping[str, Any]
) -> mcp.CallToolResult:
    """Read a resource (`READ_RESOURCE`) or get a prompt (`GET_PROMPT`).

    Raises:
        ValueError, RuntimeError, MCPError, ValidationError: as any request does; the caller interprets them.
    """
    stamped = cast("Any", dict(meta))
    if name == READ_RESOURCE:
        read = await session.read_resource(arguments["uri"], meta=stamped)
        return mcp.CallToolResult(content=[_block(part) for part in read.contents])
    got = await session.get_prompt(arguments["name"], arguments["arguments"], meta=stamped)
    return mcp.CallToolResult(content=_said(got.messages))


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


def _block(part: mcp.TextResourceContents | mcp.BlobResourceContents) -> mcp.ContentBlock:
    if isinstance(part, mcp.TextResourceContents):
        return mcp.TextContent(text=part.text)
    return mcp.EmbeddedResource(resource=part)


def _said(messages: list[mcp.PromptMessage]) -> list[mcp.ContentBlock]:
    """A prompt's messages, with their roles where there is more than one."""
    content: list[mcp.ContentBlock] = []
    for message in messages:
        block = message.content
        if len(messages) > 1 and isinstance(block, mcp.TextContent):
            block = mcp.TextContent(text=f"{message.role}: {block.text}")
        content.append(block)
    return content
