"""Answer the gateway's own tools, which return instructions, resources and prompts as tool results."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar, cast

import mcp_types as mcp
from mcp import MCPError
from mcp.client.session import ClientSession

from gateway.types import GET_INSTRUCTIONS, GET_PROMPT, LIST_PROMPTS, LIST_RESOURCES, READ_RESOURCE

_MAX_PAGES = 100


async def fetch(
    session: ClientSession, name: str, arguments: Mapping[str, Any], *, instructions: str, meta: Mapping[str, Any]
) -> mcp.CallToolResult:
    """Answer the resource tool `name`.

    Raises:
        ValueError, RuntimeError, MCPError, ValidationError: as any request does; the caller interprets them.
    """
    stamped = cast("Any", dict(meta))
    # They came with the handshake: no request asks for them.
    if name == GET_INSTRUCTIONS:
        return _text(instructions)
    if name == LIST_RESOURCES:
        return _text("\n".join(await _resources(session, stamped)) or "There are no resources.")
    if name == READ_RESOURCE:
        read = await session.read_resource(arguments["uri"], meta=stamped)
        return mcp.CallToolResult(content=[_block(part) for part in read.contents])
    if name == LIST_PROMPTS:
        return _text("\n".join(await _prompts(session, stamped)) or "There are no prompts.")
    if name == GET_PROMPT:
        got = await session.get_prompt(arguments["name"], arguments.get("arguments") or {}, meta=stamped)
        return mcp.CallToolResult(content=_said(got.messages))
    raise ValueError(f"nothing here answers {name!r}")


class _Page(Protocol):
    @property
    def next_cursor(self) -> str | None: ...


P = TypeVar("P", bound=_Page)


async def _pages(ask: Callable[[mcp.PaginatedRequestParams], Awaitable[P]], meta: Any) -> AsyncGenerator[P]:
    cursor: str | None = None
    seen: set[str] = set()
    for _ in range(_MAX_PAGES):
        page = await ask(mcp.PaginatedRequestParams(cursor=cursor, _meta=meta))
        yield page
        cursor = page.next_cursor
        # A server may send its cursors in a circle.
        if not cursor or cursor in seen:
            return
        seen.add(cursor)


async def _resources(session: ClientSession, meta: Any) -> list[str]:
    lines: list[str] = []
    async for page in _pages(lambda params: session.list_resources(params=params), meta):
        lines += [_line(str(found.uri), found, found.mime_type) for found in page.resources]
    try:
        async for page in _pages(lambda params: session.list_resource_templates(params=params), meta):
            lines += [_line(found.uri_template, found, found.mime_type) for found in page.resource_templates]
    except MCPError as error:
        # A server with resources need not have templates of them.
        if error.code != mcp.METHOD_NOT_FOUND:
            raise
    return lines


async def _prompts(session: ClientSession, meta: Any) -> list[str]:
    lines: list[str] = []
    async for page in _pages(lambda params: session.list_prompts(params=params), meta):
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
