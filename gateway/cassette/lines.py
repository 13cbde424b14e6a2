"""The line types of a cassette file, versioned and readable by people; docs/replay.md describes them.

A cassette is a file of JSON lines. A `cassette` line begins it; a `gateway` line for each environment has its tools.
Then come the leases: a `lease` line, and after it the `call` lines of this lease, in the order in which they began.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from mcp_rollout.gateway.errors import ConfigError, Failure
from mcp_rollout.gateway.server_events import ServerEvents
from mcp_rollout.gateway.types import Content, ContentKind, Role, ToolDefinition, ToolResult

VERSION = 1
_PLACEHOLDER = re.compile(r"\$\{trajectory(\$*)\}")
"""Stands for the trajectory's id, which differs in each replay. A text that looks like it gets one more `$` inside."""
_OF_THE_PROTOCOL = "io.modelcontextprotocol/"
"""Keys of a result's `_meta` that say the same with every answer, such as the server's name."""
_SHORTEST_ID = 16
"""Shorter ids occur in too many innocent texts: of them, those with letters and others are found between others."""


class Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Header(Line):
    """The first line of a file."""

    kind: Literal["cassette"]
    version: int


class RecordedServer(Line):
    """One server of a gateway."""

    tools: tuple[ToolDefinition, ...] = ()
    """Harness tools included."""
    instructions: str = ""


class RecordedGateway(Line):
    """The servers of one environment, as they were when the recording began."""

    kind: Literal["gateway"]
    gateway: str
    """The environment's name."""
    servers: dict[str, RecordedServer]


class RecordedLease(Line):
    """The beginning of a trajectory's lease; its calls follow."""

    kind: Literal["lease"]
    gateway: str
    task: str | None
    """None for a lease that reset nothing, such as one that listed tasks."""
    seed: int
    identity: dict[str, str | int | bool] = {}
    """What distinguishes the trajectories of a task: `sample`, `attempt`, ..."""
    replaces: str = ""
    """Digest of an older recording of the same trajectory, which this one differs from and takes the place of."""
    failure: Failure | None = None
    """Why the lease was not granted."""
    tools_changed: Failure | None = None
    """The change of a server's tools that ended the trajectory."""


class Block(Line):
    """One block of a result's content."""

    kind: ContentKind
    text: str = ""
    data: str = ""
    """Binary content as base64."""
    mime_type: str | None = None
    uri: str | None = None


class RecordedResult(Line):
    """The result of a call."""

    text: str | None = None
    """The content, where it is one block of text."""
    content: tuple[Block, ...] = ()
    """The content otherwise."""
    structured: dict[str, Any] | None = None
    is_error: bool = False
    reward: float | None = None
    ends_world: bool = False
    meta: dict[str, Any] = {}
    resends: int = 0

    @classmethod
    def of(cls, result: ToolResult) -> RecordedResult:
        blocks = result.content
        # Most results are one text, and a person who reads the file should see it at once.
        plain = len(blocks) == 1 and blocks[0] == Content(kind=ContentKind.TEXT, text=blocks[0].text)
        return cls(
            text=blocks[0].text if plain else None,
            content=() if plain else tuple(_block(each) for each in blocks),
            structured=None if result.structured is None else dict(result.structured),
            is_error=result.is_error,
            reward=result.reward,
            ends_world=result.ends_world,
            meta={name: value for name, value in result.meta.items() if not name.startswith(_OF_THE_PROTOCOL)},
            resends=result.resends,
        )

    def result(self, elapsed_s: float) -> ToolResult:
        content = tuple(_content(each) for each in self.content)
        if self.text is not None:
            content = (Content(kind=ContentKind.TEXT, text=self.text),)
        return ToolResult(
            content=content,
            structured=self.structured,
            is_error=self.is_error,
            reward=self.reward,
            ends_world=self.ends_world,
            meta=self.meta,
            resends=self.resends,
            elapsed_s=elapsed_s,
        )


class RecordedCall(Line):
    """One call. It has a result or a failure; without both it was cut short, by the trajectory's time for example."""

    kind: Literal["call"]
    server: str
    tool: str
    role: Role | None = None
    """Set for a harness tool."""
    arguments: dict[str, Any] = {}
    """As sent: coerced, and with fixed arguments."""
    result: RecordedResult | None = None
    failure: Failure | None = None
    elapsed_s: float = 0.0
    events: ServerEvents | None = None
    """What the server asked and reported within the call, with the answers."""


def is_query(role: Role | None) -> bool:
    """Whether a tool with this role reads and changes nothing, so that its place among other calls does not matter."""
    return role in (Role.TASKS, Role.EXPERT)


CassetteLine = Annotated[Header | RecordedGateway | RecordedLease | RecordedCall, Field(discriminator="kind")]
_LINE: TypeAdapter[CassetteLine] = TypeAdapter(CassetteLine)


def dump(line: CassetteLine, redact: Callable[[Any], Any], trajectory: str | None = None) -> str:
    """The line as text, without values that are defaults, and with a placeholder for the trajectory's id.

    Args:
        redact: replaces secrets in a JSON value. In the text they may be escaped.
    """
    value = redact(_LINE.dump_python(line, mode="json", exclude_defaults=True))
    text = json.dumps(value, ensure_ascii=False)
    return text if trajectory is None else unnamed(text, trajectory)


def parse(text: str, *, file: str, number: int, trajectory: str | None = None) -> CassetteLine:
    """Read a line.

    Args:
        trajectory: the id that replaces the placeholder; None leaves it.

    Raises:
        ConfigError: the line is not one of a cassette.
    """
    where = f"{file}:{number}"
    try:
        value: object = json.loads(text if trajectory is None else named(text, trajectory))
        return _LINE.validate_python(value)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        key = ".".join(map(str, fault["loc"])) or None
        problem = "has no known kind" if fault["type"].startswith("union_tag") else fault["msg"]
        raise ConfigError(problem, file=where, key=key, remedy="see docs/schemas/cassette.schema.json") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"is not a line of JSON: {error}", file=where, remedy="correct or delete the line") from error


def unnamed(text: str, trajectory: str) -> str:
    """JSON text with a placeholder for the trajectory's id, unless that is short and a mere word or number."""
    text = _PLACEHOLDER.sub(r"${trajectory\1$}", text)
    # As it is written in JSON text, where an id may be escaped.
    written = re.escape(json.dumps(trajectory, ensure_ascii=False)[1:-1])
    if len(trajectory) < _SHORTEST_ID:
        if trajectory.isalpha() or not re.search("[A-Za-z]", trajectory):
            return text
        written = rf"(?:(?<![\w-])|(?<=\\[bfnrt])){written}(?![\w-])"
    return re.sub(written, "${trajectory}", text)


def named(text: str, trajectory: str) -> str:
    """The opposite of `unnamed`."""
    written = json.dumps(trajectory, ensure_ascii=False)[1:-1]
    return _PLACEHOLDER.sub(lambda found: f"${{trajectory{found[1][1:]}}}" if found[1] else written, text)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a line."""
    return _LINE.json_schema()


def _block(content: Content) -> Block:
    data = base64.b64encode(content.data).decode()
    return Block(kind=content.kind, text=content.text, data=data, mime_type=content.mime_type, uri=content.uri)


def _content(block: Block) -> Content:
    data = base64.b64decode(block.data)
    return Content(kind=block.kind, text=block.text, data=data, mime_type=block.mime_type, uri=block.uri)
