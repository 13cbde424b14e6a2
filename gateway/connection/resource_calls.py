"""Answer the gateway's own tools, which return instructions, resources and prompts as tool results."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar, cast

import mcp_types as mcp
from mcp import MCPError
from mcp.client.session import ClientSession
from pydantic_core import to_json

from mcp_rollout.gateway.connection.relay import ErrorAnswer, Json
from mcp_rollout.gateway.transport.delivery import GatewayAnswer
from mcp_rollout.gateway.types import GET_INSTRUCTIONS, GET_PROMPT, LIST_PROMPTS, LIST_RESOURCES, READ_RESOURCE

MAX_PAGES = 100


async def fetch(
    session: ClientSession,
    name: str,
    arguments: Mapping[str, Any],
    *,
    instructions: str,
    meta: Mapping[str, Any],
    most_bytes: int,
) -> mcp.CallToolResult:
    """Answer the resource tool `name`.

    Args:
        most_bytes: Of each list, as `pages`.

    Raises:
        ValueError, RuntimeError, MCPError, ValidationError: as any request does; the caller interprets them.
    """
    stamped = cast("Any", dict(meta))
    # They came with the handshake: no request asks for them.
    if name == GET_INSTRUCTIONS:
        return _text(instructions)
    if name == LIST_RESOURCES:
        return _text("\n".join(await _resources(session, stamped, most_bytes)) or "There are no resources.")
    if name == READ_RESOURCE:
        read = await session.read_resource(arguments["uri"], meta=stamped)
        return mcp.CallToolResult(content=[_block(part) for part in read.contents])
    if name == LIST_PROMPTS:
        return _text("\n".join(await _prompts(session, stamped, most_bytes)) or "There are no prompts.")
    if name == GET_PROMPT:
        got = await session.get_prompt(arguments["name"], arguments.get("arguments") or {}, meta=stamped)
        return mcp.CallToolResult(content=_said(got.messages))
    raise ValueError(f"nothing here answers {name!r}")


class _Page(Protocol):
    @property
    def next_cursor(self) -> str | None: ...


P = TypeVar("P", bound=_Page | Json)


class TooLong(ValueError):
    """A list has more than is read of it."""


async def pages(ask: Callable[[Json], Awaitable[P]], most_bytes: int) -> AsyncGenerator[P]:
    """The pages of a list, which are models or JSON.

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
        cursor: Any = page.get("nextCursor") if isinstance(page, dict) else page.next_cursor
        following = hash(_as_json(cursor))
        if cursor is None or following in seen:
            return
        seen |= {hash(text), following}
        params = {"cursor": cursor}


def _as_json(value: Any) -> bytes:
    try:
        return to_json(value, by_alias=True, exclude_none=True)
    except ValueError:  # nested deeper than pydantic writes
        return json.dumps(value).encode()


def _models(ask: Callable[..., Awaitable[P]], meta: Any, most_bytes: int) -> AsyncGenerator[P]:
    return pages(lambda params: ask(params=mcp.PaginatedRequestParams(**params, _meta=meta)), most_bytes)


async def _resources(session: ClientSession, meta: Any, most_bytes: int) -> list[str]:
    lines: list[str] = []
    async for page in _models(session.list_resources, meta, most_bytes):
        lines += [_line(str(found.uri), found, found.mime_type) for found in page.resources]
    try:
        async for page in _models(session.list_resource_templates, meta, most_bytes):
            lines += [_line(found.uri_template, found, found.mime_type) for found in page.resource_templates]
    except MCPError as error:
        # A server with resources need not have templates of them.
        if error.code != mcp.METHOD_NOT_FOUND:
            raise
    return lines


async def _prompts(session: ClientSession, meta: Any, most_bytes: int) -> list[str]:
    lines: list[str] = []
    async for page in _models(session.list_prompts, meta, most_bytes):
        for prompt in page.prompts:
            lines.append(f"{prompt.name}: {prompt.description or prompt.title or prompt.name}")
            for argument in prompt.arguments or ():
                needed = "required" if argument.required else "optional"
                about = f": {argument.description}" if argument.description else ""
                lines.append(f"  {argument.name} ({needed}){about}")
    return lines


def _line(uri: str, found: mcp.Resource | mcp.ResourceTemplate, mime_type: str | None) -> str:
    about = found.description or found.title or found.name
    return f"{uri}: {about}" + (f" ({mime_type})" if mime_type else "")


def _text(text: str) -> mcp.CallToolResult:
    return mcp.CallToolResult(content=[mcp.TextContent(text=text)])


def _block(part: mcp.TextResourceContents | mcp.BlobResourceContents) -> mcp.ContentBlock:
    if isinstance(part, mcp.TextResourceContents):
        return mcp.TextContent(text=part.text)
    kind = (part.mime_type or "").partition("/")[0]
    if kind == "image":
        return mcp.ImageContent(data=part.blob, mime_type=part.mime_type or "")
    if kind == "audio":
        return mcp.AudioContent(data=part.blob, mime_type=part.mime_type or "")
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
