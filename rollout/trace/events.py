"""What happened between two generations: tool calls with their results, and the user's messages."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from gateway.types import CallFault, Content, ContentKind, ToolResult
from rollout.types import Call, Message, Shown


@dataclass(kw_only=True, slots=True)
class Block:
    """Binary content of a result; it is kept itself where the policy was shown it, in the trace's messages."""

    kind: ContentKind
    mime_type: str | None
    uri: str | None
    size: int  # bytes
    sha256: str

    @classmethod
    def of(cls, content: Content) -> Block:
        digest = hashlib.sha256(content.data).hexdigest()
        return cls(
            kind=content.kind, mime_type=content.mime_type, uri=content.uri, size=len(content.data), sha256=digest
        )


@dataclass(kw_only=True, slots=True)
class ToolEvent:
    """One call and what came of it."""

    name: str
    arguments: dict[str, Any]
    text: str
    """The whole of it, a line for each block that is not text."""
    is_error: bool
    fault: CallFault | None = None
    server: str | None = None
    """Whose tool it is; None for a call that no server was asked for."""
    id: str | None = None
    reward: float | None = None
    elapsed_s: float = 0.0
    shown: str | None = None
    """What the policy read, where that is not `text`: a long text cut, or images beside it."""
    cut_tokens: int = 0
    coerced: dict[str, Any] = field(default_factory=dict[str, Any])
    """What was sent instead of strings in `arguments` that nearly fitted, by dotted path."""
    structured: dict[str, Any] | None = None
    """Structured content that `text` does not repeat."""
    blocks: list[Block] = field(default_factory=list[Block])


@dataclass(kw_only=True, slots=True)
class UserEvent:
    """One message of the user simulator."""

    seq: int
    message: str
    done: bool
    reward: float | None = None
    elapsed_s: float = 0.0


def tool_event(call: Call, result: ToolResult, shown: Shown, server: str | None = None) -> ToolEvent:
    """The record of a call."""
    text = result.text
    structured = dict(result.structured) if result.structured is not None else None
    return ToolEvent(
        name=call.name,
        server=server,
        arguments=call.arguments,
        id=call.id,
        text=text,
        is_error=result.is_error,
        fault=result.fault,
        reward=result.reward,
        elapsed_s=result.elapsed_s,
        shown=shown.text if shown.text != text else None,
        cut_tokens=shown.cut_tokens,
        coerced=dict(result.coerced),
        structured=None if _repeats(text, structured) else structured,
        blocks=[Block.of(block) for block in result.content if block.data],
    )


def _repeats(text: str, structured: dict[str, Any] | None) -> bool:
    """Servers repeat structured content as JSON text, and put what is no object under `result`."""
    if structured is None:
        return True
    if text in (structured.get("result"), str(structured.get("result"))):
        return True
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return said == structured or said == structured.get("result")


def tool_message(call: Call, content: str | list[dict[str, Any]]) -> Message:
    message: Message = {"role": "tool", "name": call.name, "content": content}
    return message | ({"tool_call_id": call.id} if call.id is not None else {})
