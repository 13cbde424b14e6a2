"""Events of a turn: tool calls with their results, user messages, and marks that describe problems of the turn."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, cast

from mcp_rollout.gateway.types import CallFault, Content, ContentKind, ToolResult
from mcp_rollout.rollout.environment.sections import FilterAction
from mcp_rollout.rollout.trace.segment import FINITE
from mcp_rollout.rollout.types import Call, Message, Shown


@dataclass(kw_only=True, slots=True)
class Block:
    """Binary content of a result. The bytes are kept only where the policy was shown them, in the trace's messages."""

    kind: ContentKind
    mime_type: str | None
    uri: str | None
    size: int  # bytes
    sha256: str

    @classmethod
    def of(cls, content: Content) -> Block:
        data, digest = content.data, hashlib.sha256(content.data).hexdigest()
        return cls(kind=content.kind, mime_type=content.mime_type, uri=content.uri, size=len(data), sha256=digest)


@dataclass(kw_only=True)
class ToolEvent:
    """One tool call and its result."""

    __pydantic_config__ = FINITE

    name: str
    arguments: dict[str, Any]
    text: str
    """The whole result as text, with one line for each block that is not text."""
    is_error: bool
    fault: CallFault | None = None
    server: str | None = None
    """The server that the call was sent to; None for a call that was not sent."""
    id: str | None = None
    reward: float | None = None
    began_at: float = 0.0
    """Seconds since 1970 when the call was handed to the gateway; 0 for a call that was not sent."""
    elapsed_s: float = 0.0
    """Seconds between the request and its answer, on the connection that answered."""
    wait_s: float = 0.0
    """Further seconds of the call: argument checks, a broken first attempt, a busy event loop."""
    server_s: float | None = None
    """Seconds that the server worked on the call, where it says so in `_meta["mcp-rollout/server_s"]`."""
    resends: int = 0
    sent_bytes: int = 0
    """Bytes of the arguments as JSON."""
    received_bytes: int = 0
    """Bytes of the result's content."""
    shown: str | None = None
    """The text that the policy read, where it differs from `text`: cut, or next to images."""
    cut_tokens: int = 0
    coerced: dict[str, Any] = field(default_factory=dict[str, Any])
    """Values that were sent in place of strings in `arguments`, by dotted path."""
    structured: dict[str, Any] | None = None
    """Structured content that `text` does not repeat."""
    blocks: list[Block] = field(default_factory=list[Block])
    state: str | None = None
    """The server's digest of its state after the call, where it gives one."""
    volatile: list[str] = field(default_factory=list[str])
    """Dotted paths of the fields that the server declares to differ each time."""

    @classmethod
    def of(cls, call: Call, result: ToolResult, shown: Shown, server: str | None) -> ToolEvent:
        text = result.text
        structured = dict(result.structured) if result.structured is not None else None
        return cls(
            name=call.name,
            server=server,
            arguments=call.arguments,
            id=call.id,
            text=text,
            is_error=result.is_error,
            fault=result.fault,
            reward=result.reward,
            elapsed_s=result.elapsed_s,
            server_s=result.server_s,
            resends=result.resends,
            # `replace`, since a model can write half of a surrogate pair, which UTF-8 does not have.
            sent_bytes=len(json.dumps(call.arguments, ensure_ascii=False).encode(errors="replace")) if server else 0,
            received_bytes=sum(len(block.data) + len(block.text.encode(errors="replace")) for block in result.content),
            shown=shown.text if shown.text != text else None,
            cut_tokens=shown.cut_tokens,
            coerced=dict(result.coerced),
            structured=None if result.repeats_structured else structured,
            blocks=[Block.of(block) for block in result.content if block.data],
            state=result.state,
            volatile=result.volatile,
        )


@dataclass(kw_only=True)
class CheckEvent:
    """One of the row's checks: the call that examined the world, and whether it returned what it must."""

    call: ToolEvent
    holds: bool


@dataclass(kw_only=True)
class UserEvent:
    """One message of the user simulator."""

    __pydantic_config__ = FINITE

    seq: int
    message: str
    done: bool
    reward: float | None = None
    elapsed_s: float = 0.0
    state: str | None = None
    """The server's digest of its state after the reply, where it gives one."""


class MarkKind(StrEnum):
    """Kinds of problems that are recorded about a turn."""

    VOID = "void"
    """Neither a readable call nor an answer; `detail` has the reason (SimpleTIR, arXiv 2509.02479)."""
    REPEATED_CALL = "repeated_call"
    LONG_THINKING = "long_thinking"
    OVERLONG = "overlong"
    """A limit cut the trajectory with this turn, or was near; `detail` has the limit, or the share of tokens left."""
    MALFORMED_CALL = "malformed_call"
    UNKNOWN_TOOL = "unknown_tool"
    CUT_CALL = "cut_call"
    """The length limit cut the last call."""
    CALL_IN_THINKING = "call_in_thinking"
    """A call inside the thinking, which is not sent."""
    NOT_SENT = "not_sent"
    """Calls beyond the parallel limit."""
    TIMED_OUT = "timed_out"
    """Calls that the trajectory's own process did not answer in time."""
    SERVER_GONE = "server_gone"
    """Calls to the trajectory's own process that had ended for what the trajectory did."""
    RESULT_CUT = "result_cut"
    """Results were cut to fit into the token budget."""
    RESULT_OVERFLOW = "result_overflow"
    """Results or a user message did not fit into the token budget even when cut; the trajectory ended."""
    THINKING_CLOSED = "thinking_closed"
    """The thinking budget closed the thought."""
    UNASKED_CALL = "unasked_call"
    """Calls of a program that the policy did not write; the policy may not have read their results."""
    CAME_BACK_CHANGED = "came_back_changed"
    """A program wrote the turn's calls anew; `detail` has each change. The policy reads them as it wrote them."""
    WENT_BACK = "went_back"
    """A program took the conversation up from an earlier turn; `detail` has its number."""
    REWRITTEN = "rewritten"
    """A program went on with another conversation, such as a summary, or with other tools; `detail` says what."""
    RESULT_CHANGED = "result_changed"
    """A program gave the policy another result of a call than the world gave; `detail` has both."""
    RESULT_INVENTED = "result_invented"
    """A program gave the policy a result of a call of the world's that it did not make; `detail` has it."""
    BESIDE = "beside"
    """The turn is of a conversation beside a program's own, such as a sub-agent's: no limit of turns counts it."""
    PROGRAM_ENDED = "program_ended"
    """A program ended with an error; `detail` has it, and the end of what it wrote."""
    COMPACTED = "compacted"
    """The turn is a summary, which replaced its context or was none; `detail` has the tokens before and after, or what
    was wrong with it. Not a problem where it replaced its context."""
    OLDEST_CUT = "oldest_cut"
    """After the turn, the oldest ones were cut from the context; `detail` has the tokens before and after."""


ORDINARY = frozenset({MarkKind.COMPACTED, MarkKind.OLDEST_CUT, MarkKind.BESIDE})
"""Marks of what a strategy does; a summary that is none ends its trajectory, and the stop reason says so."""


@dataclass(kw_only=True)
class Mark:
    """A problem of one turn."""

    kind: MarkKind
    detail: str = ""
    action: FilterAction | None = None
    """The action of the filter that matched; None if no filter is involved."""


def call_message(calls: Iterable[Call]) -> Message:
    """The part of an assistant's chat message that has its calls; empty where there is none."""
    written = [
        {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        | ({"id": call.id} if call.id is not None else {})
        for call in calls
    ]
    return {"tool_calls": written} if written else {}


def tool_message(call: Call, content: str | list[dict[str, Any]]) -> Message:
    """The result of a call as a chat message."""
    message: Message = {"role": "tool", "name": call.name, "content": content}
    return message | ({"tool_call_id": call.id} if call.id is not None else {})


def stable_text(text: str, paths: Iterable[str]) -> Any:
    """A text that is a JSON object or array, parsed and without the fields at these dotted paths; else the text."""
    try:
        parsed: Any = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return stable(parsed, paths) if isinstance(parsed, dict | list) else text


def stable(value: Any, paths: Iterable[str]) -> Any:
    """The value without the fields at these dotted paths, which pass through lists."""
    return _without(value, [path.split(".") for path in paths])


def _without(value: Any, paths: list[list[str]]) -> Any:
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, Any]", value)
        left: dict[str, Any] = {}
        for name, inner in fields.items():
            below = [path[1:] for path in paths if path[0] == name]
            if [] not in below:
                left[name] = _without(inner, below)
        return left
    if isinstance(value, list):
        return [_without(inner, paths) for inner in cast("list[Any]", value)]
    return value
