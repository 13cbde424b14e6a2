"""Results of `tools/call`: from the protocol's form to ours, without I/O."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, NamedTuple, cast

import mcp_types as mcp
from mcp_types import methods
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import Discriminator, Tag, TypeAdapter

from mcp_rollout.gateway.types import DONE_META, REWARD_META, Content, ContentKind, ToolResult

Returned = mcp.CallToolResult | mcp.InputRequiredResult


def _result_type(raw: Any) -> str:
    kind = cast("Mapping[str, Any]", raw).get("resultType") if isinstance(raw, Mapping) else None
    return "input_required" if kind == "input_required" else "complete"


ANSWER: TypeAdapter[Returned] = TypeAdapter(
    Annotated[
        Annotated[mcp.CallToolResult, Tag("complete")] | Annotated[mcp.InputRequiredResult, Tag("input_required")],
        Discriminator(_result_type),
    ]
)


_MOST_OTHER_BLOCKS = 2000
"""Content blocks of a result where not all are plain text: each takes mcp's models some thirty microseconds."""
_NO_META: Mapping[str, Any] = {}
_type_of: Callable[[Any], Any] = type


class PlainResult(NamedTuple):
    """A result of the form that nearly all have: text, perhaps an object, and nothing that needs a closer look."""

    content: tuple[Content, ...]
    structured_content: Mapping[str, Any] | None
    is_error: bool
    meta: Mapping[str, Any]


def read_answer(raw: Mapping[str, Any], version: str) -> PlainResult | Returned:
    """Validate a raw result as mcp's session does.

    Raises:
        ValueError: it does not fit the protocol version.
    """
    # Servers write optional fields as null, and leave out the content of a result that is structured.
    raw = {name: value for name, value in raw.items() if value is not None}
    if "structuredContent" in raw:
        raw.setdefault("content", [])
    modern = version in MODERN_PROTOCOL_VERSIONS
    if (plain := _plain(raw)) is not None and (not modern or "resultType" in raw):
        return plain
    blocks = raw.get("content")
    if isinstance(blocks, list) and (number := len(cast("list[Any]", blocks))) > _MOST_OTHER_BLOCKS:
        raise ValueError(f"the result has {number} blocks, not all plain text, and the most is {_MOST_OTHER_BLOCKS}")
    structured = raw.get("structuredContent")
    if not modern:
        raw = {name: value for name, value in raw.items() if name != "resultType"}
    if isinstance(structured, dict):  # of which no version says more, and which may be large
        raw = {**raw, "structuredContent": {}}
    with suppress(KeyError):  # a version that defines no form for results
        methods.validate_server_result("tools/call", version, raw)
    answer = ANSWER.validate_python(raw, by_name=False)
    if isinstance(answer, mcp.CallToolResult):
        answer.structured_content = structured
    return answer


def _plain(raw: Mapping[str, Any]) -> PlainResult | None:
    """The result, if it has only fields that every protocol version defines alike, each of its type."""
    content: tuple[Content, ...] | None = None
    structured: Any = None
    is_error: Any = False
    meta: Any = _NO_META
    value: Any
    for name, value in raw.items():
        kind = _type_of(value)
        if name == "content" and kind is list:
            content = _texts(value)
        elif name == "structuredContent" and kind is dict:
            structured = value
        elif name == "isError" and kind is bool:
            is_error = value
        elif name == "_meta" and kind is dict:
            meta = value
        # Any other field or type is for mcp's validation to accept or to refuse.
        elif name != "resultType" or value != "complete":
            return None
    return PlainResult(content, structured, is_error, meta) if content is not None else None


def _texts(blocks: list[Any]) -> tuple[Content, ...] | None:
    """The blocks, if they are text and nothing else."""
    content: list[Content] = []
    for block in blocks:
        if _type_of(block) is not dict or len(block) != 2 or block.get("type") != "text":
            return None
        text = block.get("text")
        if _type_of(text) is not str:
            return None
        content.append(Content(kind=ContentKind.TEXT, text=_as_text(text)))
    return tuple(content)


def read_result(
    result: mcp.CallToolResult | PlainResult, *, trusted: bool, elapsed_s: float, show_structured: bool = False
) -> ToolResult:
    """Our form of a result. Structured content that is not an object is put under `result`.

    Args:
        show_structured: Whether structured content that no text repeats is added as the last text; where there is no
            other content it always is.

    Raises:
        ValueError: binary content that is not base64.
    """
    structured: Any = result.structured_content
    if structured is not None and _type_of(structured) is not dict and not isinstance(structured, Mapping):
        structured = {"result": structured}
    if isinstance(result, PlainResult):
        content = result.content
    else:
        content = tuple(_content(block) for block in result.content)
    meta = cast("Mapping[str, Any]", result.meta or {})
    read = ToolResult(
        content=content,
        structured=cast("Mapping[str, Any] | None", structured),
        is_error=result.is_error,
        reward=_reward(meta) if trusted else None,
        ends_world=trusted and meta.get(DONE_META) is True,
        elapsed_s=elapsed_s,
        meta=meta,
    )
    if structured is None or (content and (not show_structured or read.repeats_structured)):
        return read
    # "For backwards compatibility", a server should repeat structured content as text. The policy reads texts alone.
    added = Content(kind=ContentKind.TEXT, text=_as_text(json.dumps(structured, ensure_ascii=False)))
    return replace(read, content=(*content, added))


def _reward(meta: Mapping[str, Any]) -> float | None:
    value = meta.get(REWARD_META)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _content(block: mcp.ContentBlock) -> Content:
    match block:
        case mcp.TextContent():
            return Content(kind=ContentKind.TEXT, text=_as_text(block.text))
        case mcp.ImageContent():
            return Content(kind=ContentKind.IMAGE, data=_bytes(block.data), mime_type=block.mime_type)
        case mcp.AudioContent():
            return Content(kind=ContentKind.AUDIO, data=_bytes(block.data), mime_type=block.mime_type)
        case mcp.ResourceLink():
            text = block.description or block.title or block.name
            return Content(kind=ContentKind.RESOURCE, text=text, mime_type=block.mime_type, uri=str(block.uri))
        case mcp.EmbeddedResource(resource=inner):
            where: dict[str, Any] = {"mime_type": inner.mime_type, "uri": str(inner.uri)}
            if isinstance(inner, mcp.TextResourceContents):
                return Content(kind=ContentKind.RESOURCE, text=_as_text(inner.text), **where)
            return Content(kind=ContentKind.RESOURCE, data=_bytes(inner.blob), **where)


def _as_text(text: str) -> str:
    """Without halves of surrogate pairs, which only a server in this process can send."""
    try:
        if not text.isascii():
            text.encode()
        return text
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except binascii.Error as error:
        raise ValueError(f"content is not base64: {error}") from None
