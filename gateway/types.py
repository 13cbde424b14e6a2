"""Types that cross the gateway's layers: tool definitions, results, and events of servers."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, cast

from pydantic_core import from_json

LEASE_EXTENSION = "mcp-rollout/leases"
"""The extension of the protocol by which a gateway leases worlds of another one."""
OWN_PREFIX = "mcp-rollout/"
"""What begins the names below in `_meta`: of gateways and servers, never of an MCP client."""
TRAJECTORY_META = "mcp-rollout/trajectory"
"""Key in each request's `_meta`: the trajectory id, by which our `shared` servers keep state apart."""
SEED_META = "mcp-rollout/seed"
"""Key in each request's `_meta`: the trajectory's seed."""
ROLE_META = "mcp-rollout/role"
"""Key in a tool's `_meta`: its `Role`, which makes it a harness tool."""
REHEARSAL_META = "mcp-rollout/rehearsal"
"""Key in the `_meta` of a reset: arguments with which an idle process may be reset and released before any lease."""
TRAJECTORIES_META = "mcp-rollout/trajectories"
"""Key in a tool's `_meta`: how many trajectories its server keeps apart in one process, by `TRAJECTORY_META`."""
REWARD_META = "mcp-rollout/reward"
"""Key in a result's `_meta`: a reward for this turn; read from trusted servers only."""
DONE_META = "mcp-rollout/done"
"""Key in a result's `_meta`: `true` where the world ended with this call; read from trusted servers only."""
SERVER_TIME_META = "mcp-rollout/server_s"
"""Key in a result's `_meta`: seconds that the server worked on the call, by its own clock."""

STATE_META = "mcp-rollout/state"
"""Key in a result's `_meta`: a digest of the server's state after the call; equal digests mean equal states."""
VOLATILE_META = "mcp-rollout/volatile"
"""Key in a result's `_meta`: dotted paths of the fields of its content that differ each time, such as a clock."""


class Scope(StrEnum):
    """How a server's state is kept apart between trajectories."""

    SHARED = "shared"
    """One connection for all: stateless servers, and servers that key their state by `TRAJECTORY_META`."""
    SESSION = "session"
    """One protocol session per trajectory, for servers that keep state per session."""
    PROCESS = "process"
    """One process per trajectory, from a warm pool."""


class Audience(StrEnum):
    """The user of a tool."""

    POLICY = "policy"
    """Rendered to the model."""
    HARNESS = "harness"
    """Called by the rollout, never rendered."""


class Role(StrEnum):
    """The purpose of a harness tool. Arguments and structured results are part of the contract."""

    RESET = "reset"  # (task, seed) -> {}
    START = "start"  # () -> {message}
    REPLY = "reply"  # (seq, message) -> {message, done, reward?}
    ELICIT = "elicit"  # (seq, message, schema, server, tool) -> {action: accept|decline|cancel, content?}
    SCORE = "score"  # (messages) -> {score, parts}
    RELEASE = "release"  # () -> {}
    SNAPSHOT = "snapshot"  # () -> {state}
    RESTORE = "restore"  # (state) -> {}
    TASKS = "tasks"  # (split, limit) -> {tasks: [{task, seed, prompt}]}
    EXPERT = "expert"  # (task, seed) -> {turns: [{thinking?, content?, calls?: [{name, arguments}]}]}


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces, so that equal values have equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolDefinition:
    """One tool, as its server defines it and under the name that the policy sees."""

    server: str
    name: str
    """The server's own name for the tool; calls are routed by `(server, name)`."""
    exposed_name: str
    """The name rendered to the policy: `name`, the entry's override, or `server__name` if two servers share it."""
    description: str
    input_schema: dict[str, Any]
    """The full JSON Schema, exactly as the server sent it, without the arguments in `fixed`."""
    output_schema: dict[str, Any] | None = None
    role: Role | None = None
    read_only: bool = False
    idempotent: bool = False
    rehearsal: Mapping[str, Any] | None = None
    """Of a reset: the arguments in `REHEARSAL_META`."""
    fixed: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Arguments that the gateway adds to each call; `input_schema` does not have them."""
    full_schema: dict[str, Any] | None = None
    """The server's schema if `fixed` removed something from it; the arguments as sent have to fit this one."""
    reads_resource: bool = False
    """Whether it is that of `Gateway.read_resource`, and no tool of the server's."""

    @property
    def audience(self) -> Audience:
        return Audience.HARNESS if self.role else Audience.POLICY

    @property
    def sent_schema(self) -> dict[str, Any]:
        """The schema that the arguments of a call have to fit as sent, fixed ones included."""
        return self.full_schema or self.input_schema

    @property
    def safe_to_resend(self) -> bool:
        """Whether executing a call twice has the same effect as executing it once.

        The annotations decide, and for harness roles that number their calls, a `seq` argument. The role alone does
        not: a foreign tool that was assigned a role need not be idempotent.
        """
        numbered = self.role in (Role.REPLY, Role.ELICIT) and "seq" in self.sent_schema.get("properties", ())
        return self.read_only or self.idempotent or numbered

    @property
    def pinned(self) -> dict[str, Any]:
        """The properties that the lock pins: description, schemas, and the hints that allow a resend."""
        return {
            "description": self.description,
            "input_schema": self.input_schema,
            "sent_schema": self.full_schema,
            "output_schema": self.output_schema,
            "read_only": self.read_only,
            "idempotent": self.idempotent,
        }

    @property
    def digest(self) -> str:
        """SHA-256 over the server's name for the tool and its `pinned` properties."""
        held = {"name": self.name, **self.pinned}
        return "sha256:" + hashlib.sha256(canonical_json(held).encode()).hexdigest()

    def openai_schema(self) -> dict[str, Any]:
        """The tool in the form that chat templates take, with the full input schema."""
        function = {"name": self.exposed_name, "description": self.description, "parameters": self.input_schema}
        return {"type": "function", "function": function}


class ContentKind(StrEnum):
    TEXT = "text"
    IMAGE = "image"
    AUDIO = "audio"
    RESOURCE = "resource"


@dataclass(kw_only=True, slots=True)  # not frozen: one is made for each call, at three times the cost
class Content:
    """One block of a result. Text has `text`; image and audio have `data`; a resource has either and a `uri`."""

    kind: ContentKind
    text: str = ""
    data: bytes = b""
    mime_type: str | None = None
    uri: str | None = None

    def __str__(self) -> str:
        """The block as text; binary data is named, not shown."""
        if self.kind is ContentKind.TEXT:
            return self.text
        about = [part for part in (self.uri, self.mime_type, f"{len(self.data)} bytes" if self.data else None) if part]
        return f"[{self.kind}: {', '.join(about)}]"

    @property
    def full_text(self) -> str:
        """The block as text; a resource's content follows its address."""
        return str(self) if self.kind is ContentKind.TEXT or not self.text else f"{self}\n{self.text}"


empty = cast("Callable[[], dict[str, Any]]", dict)
"""Makes an empty field of what is made for each call, in a tenth of the time of `dict[str, Any]`."""


class CallFault(StrEnum):
    """What the policy caused in a call, so that the gateway answered in the tool's place."""

    UNREADABLE = "unreadable"
    """Not sent, like the next two."""
    UNKNOWN_TOOL = "unknown_tool"
    INVALID_ARGUMENTS = "invalid_arguments"
    TIMED_OUT = "timed_out"
    """Sent to the trajectory's own process and not answered in time; whether it took effect is unknown."""
    SERVER_GONE = "server_gone"
    """The trajectory's own process had ended, for what the trajectory did."""

    @property
    def is_mistake(self) -> bool:
        """Whether the call itself was wrong, and therefore not sent."""
        return self in (CallFault.UNREADABLE, CallFault.UNKNOWN_TOOL, CallFault.INVALID_ARGUMENTS)


_MOST_READ = 4 << 20
"""Characters of a text that is read as JSON: a parser takes time for each value, and for the square of its digits."""


def _as_json(text: str) -> Any:
    """The value in a text; the text itself where it has none, or is too long."""
    try:
        return from_json(text) if len(text) <= _MOST_READ else text
    except (ValueError, RecursionError):
        return text


@dataclass(kw_only=True, slots=True)  # not frozen: one is made for each call, at three times the cost
class ToolResult:
    """The result of a tool call. `is_error` means that the tool said no, which the policy reads: not a failure."""

    content: tuple[Content, ...] = ()
    structured: Mapping[str, Any] | None = None
    is_error: bool = False
    reward: float | None = None
    """This turn's reward, from a trusted server's `REWARD_META`."""
    ends_world: bool = False
    """Whether the world ended with this call, from a trusted server's `DONE_META`."""
    elapsed_s: float = 0.0
    meta: Mapping[str, Any] = field(default_factory=empty)
    coerced: Mapping[str, Any] = field(default_factory=empty)
    """The values sent instead of strings that were coerced, by dotted path of the argument."""
    fault: CallFault | None = None
    resends: int = 0

    @property
    def server_s(self) -> float | None:
        """Seconds that the server worked on the call, from `SERVER_TIME_META`; None if it does not say."""
        seconds = self.meta.get(SERVER_TIME_META)
        if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds < math.inf:
            return float(seconds)
        return None

    @property
    def state(self) -> str | None:
        """The server's digest of its state after the call, from `STATE_META`."""
        digest = self.meta.get(STATE_META)
        return digest if isinstance(digest, str) else None

    @property
    def volatile(self) -> list[str]:
        """The dotted paths of `VOLATILE_META`."""
        named = self.meta.get(VOLATILE_META)
        return [path for path in cast("list[Any]", named) if isinstance(path, str)] if isinstance(named, list) else []

    @property
    def repeats_structured(self) -> bool:
        """Whether the text blocks have the structured content as JSON, or its only value, as servers wrap a text."""
        if self.structured is None:
            return True
        texts = [block.text for block in self.content if block.kind is ContentKind.TEXT]
        readings = [(text, _as_json(text)) for text in texts]
        wrapped: Any = next(iter(self.structured.values())) if len(self.structured) == 1 else self.structured
        if any(self.structured == value or wrapped in (text, value) for text, value in readings):
            return True
        # SDKs make a text of each item of a list.
        items = cast("list[Any]", wrapped) if isinstance(wrapped, list) else [str(wrapped)]
        return 0 < len(items) == len(texts) and all(item in each for item, each in zip(items, readings, strict=True))

    @property
    def text(self) -> str:
        """The text that a policy reads: text blocks, a line for every other block, and the text of resources."""
        return self.text_without(())

    def text_without(self, left_out: Collection[Content]) -> str:
        """As `text`, without these blocks, which the policy gets in another form."""
        return "\n".join(block.full_text for block in self.content if not any(block is seen for seen in left_out))

    @classmethod
    def error(cls, message: str, *, fault: CallFault | None = None) -> ToolResult:
        """An error result that the gateway gives in the tool's place, for the policy to read."""
        return cls(content=(Content(kind=ContentKind.TEXT, text=message),), is_error=True, fault=fault)


Identity = Mapping[str, str | int | bool]
"""What distinguishes the trajectories of a task: `sample`, `attempt`, ..."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseRequest:
    """What `Gateway.lease` was asked for."""

    trajectory: str
    task: str | None
    seed: int
    tools: Mapping[str, ToolDefinition]
    """Those that the policy may use, by exposed name, with those of `later_tools`."""
    later_tools: Collection[str] = ()
    identity: Identity = field(default_factory=dict[str, str | int | bool])
    resets: bool = False
    """Without a task: whether the caller resets every server by `Session.reset`."""
    replaces: str = ""
    """For a recording: digest of the one that the trajectory was replayed from until it differed."""

    @property
    def shown_tools(self) -> Mapping[str, ToolDefinition]:
        """The tools that may be used from the beginning."""
        later = frozenset(self.later_tools)
        shown = {name: tool for name, tool in self.tools.items() if name not in later} if later else self.tools
        return MappingProxyType(shown)

    @property
    def hidden_tools(self) -> Mapping[str, ToolDefinition]:
        """The tools that may be used once `Session.reveal` names them."""
        later = frozenset(self.later_tools)
        return MappingProxyType({name: tool for name, tool in self.tools.items() if name in later} if later else {})


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerIdentity:
    """`serverInfo` of the handshake, or of a result's `_meta` from 2026-07-28 on."""

    name: str = ""
    """Empty for a server that does not identify itself."""
    version: str = ""
    protocol: str = ""
    """The protocol version that was negotiated."""
