"""The typed configuration: the servers, how they are started, and every bound in seconds."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Literal, Self

from pydantic import AliasChoices, Field, field_validator, model_validator

from mcp_rollout.gateway.config.calls import (
    CallsConfig,
    ElicitationConfig,
    SamplingConfig,
    Seconds,
    Section,
    connectable,
)
from mcp_rollout.gateway.config.tool_selection import ToolSelection
from mcp_rollout.gateway.config.variables import expand
from mcp_rollout.gateway.errors import InvalidValue, InvalidValues
from mcp_rollout.gateway.types import Role, Scope

LogLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]


TRANSPORTS = {
    **dict.fromkeys(("stdio", "local"), "command"),
    **dict.fromkeys(("http", "streamable-http", "streamableHttp", "streamable_http", "remote", "sse"), "url"),
    "in_process": "factory",
}
"""Values of `type` or `transport`, and the key that each requires."""
_NEEDS = {"args": "command", "env": "command", "cwd": "command", "headers": "url"}
_OF_PROCESSES = ("min_ready", "max_processes", "leases_per_process", "start")


class Kind(StrEnum):
    """How a server is reached."""

    STDIO = "stdio"
    HTTP = "http"
    SSE = "sse"
    IN_PROCESS = "in_process"


class Start(StrEnum):
    """How processes of a stdio server are started."""

    SPAWN = "spawn"
    FORK = "fork"
    """From one process that is ready to serve, for Python programs that do before nothing that must not be shared."""


class ServerConfig(Section):
    """One server: exactly one of `command`, `url` and `factory`, and settings that apply to all three."""

    command: str | None = None
    """The program of a stdio server."""
    args: tuple[str, ...] = ()
    """The program's arguments."""
    env: dict[str, str] = Field(default={}, repr=False)
    """Added to the inherited allow-list; the only way to pass a secret to the server."""
    cwd: str | None = None
    """The program's working directory; the gateway's by default."""
    url: str | None = None
    """The address of a server over streamable HTTP, or over SSE."""
    headers: dict[str, str] = Field(default={}, repr=False)
    """Added to every request."""
    transport: str | None = Field(default=None, validation_alias=AliasChoices("transport", "type"))
    """As other clients write it; only `sse` has an effect, the rest follows from `command` or `url`."""
    factory: str | None = None
    """`package.module:function`, called without arguments in this process; returns what `mcp.Client` accepts."""
    scope: Scope = Scope.SHARED
    """How the server's state is kept apart between trajectories."""
    tools: ToolSelection = ToolSelection()
    """Which tools the policy sees, and how; a list is short for `{allow: [...]}`."""
    roles: dict[Role, str] = Field(default={})
    """Tool names by role, for a server that does not mark its harness tools."""
    trusted: bool = False
    """Whether per-turn rewards in this server's results count."""
    required: bool = False
    """Whether the gateway refuses to start without it."""
    start_timeout_s: Seconds = 30
    """Process start, handshake and tool listing together."""
    call_timeout_s: Seconds = 60
    """Longest duration of one call, without the time of answers to its requests."""
    close_timeout_s: Seconds = 5
    """Time to close in order; after it the process group is killed."""
    max_message_bytes: int = Field(default=8 << 20, ge=1024)
    """Longest message from the server; a longer answer is an error of its call."""
    min_ready: int = Field(default=0, ge=0)
    """Warm processes kept ready under scope `process`."""
    max_processes: int | None = Field(default=None, ge=1)
    """Maximum processes at a time under scope `process`, warm and closing ones included; a lease waits for its turn."""
    leases_per_process: int = Field(default=1, ge=1)
    """Number of leases after which a process is replaced; above 1 the server's reset tool makes it fresh in between."""
    start: Start = Start.SPAWN
    """How processes under scope `process` are started."""
    max_memory_mb: int | None = Field(default=None, ge=16)
    """MiB of private writable memory for each process of the server (RLIMIT_DATA)."""
    max_cpu_s: int | None = Field(default=None, ge=1)
    """Seconds of CPU time for each process of the server, over its whole life (RLIMIT_CPU)."""
    secrets: tuple[str, ...] | None = None
    """Names of variables, headers, options, query keys and arguments in this entry whose values are secret although
    their names do not say so. If given, an entry without secrets is not reported."""
    show_structured: bool = True
    """Whether the policy reads structured content that no text of a result repeats, as the last text."""
    log_level: LogLevel = "info"
    """The trace keeps the server's log messages of at least this level."""
    era: Literal["handshake", "modern"] | None = None
    """The protocol's: `initialize`, or `server/discover` (2026-07-28). None lets the first connection find out."""

    @property
    def kind(self) -> Kind:
        if self.command is not None:
            return Kind.STDIO
        if self.factory is not None:
            return Kind.IN_PROCESS
        return Kind.SSE if self.transport == "sse" else Kind.HTTP

    @property
    def has_processes_of_its_own(self) -> bool:
        """Whether a lease that takes a new connection takes a new process with it."""
        return self.scope is Scope.PROCESS or (self.scope is Scope.SESSION and self.command is not None)

    @property
    def label(self) -> str:
        """The server's place for messages: the command or the address without query, never arguments."""
        if self.command is not None:
            program, *more = self.command.split()
            # If `command` is a whole command line, what follows the program may be secret.
            return f"{program} …" if more and not Path(self.cwd or ".", self.command).exists() else self.command
        return self.factory or (self.url or "").split("?", 1)[0].rpartition("@")[2]

    @field_validator("transport")
    @classmethod
    def _known_transport(cls, value: str | None) -> str | None:
        if value is not None and value not in TRANSPORTS:
            raise ValueError(f"unknown transport {value!r}; one of {', '.join(TRANSPORTS)}")
        return value

    @field_validator("factory")
    @classmethod
    def _factory_names_a_function(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[\w.]+:\w+", value):
            raise ValueError(f"{value!r} is not of the form package.module:function")
        return value

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [key for key in ("command", "url", "factory") if getattr(self, key) is not None]
        if len(given) != 1:
            found = " and ".join(given) if given else "none"
            remedy = "keep one of them" if given else "add a command, or a url"
            raise InvalidValue(f"a server needs exactly one of command, url and factory; found {found}", remedy)
        if faults := [*self._faults_of_kind(given[0]), *self._faults_of_scope()]:
            raise InvalidValues(faults)
        return self

    def _faults_of_kind(self, given: str) -> Iterator[InvalidValue]:
        """What does not fit `given`, the one of `command`, `url` and `factory` that the entry has."""
        if self.url is not None:
            try:
                connectable(self.url, "url")
            except ValueError as error:
                yield InvalidValue(str(error), "correct the value")
        if self.command is not None and not self.command.strip():
            yield InvalidValue("command is empty", "name the program")
        if self.transport is not None and (needed := TRANSPORTS[self.transport]) != given:
            yield InvalidValue(f"type {self.transport} needs a {needed}, and the entry has a {given}", "remove type")
        for key, needed in _NEEDS.items():
            if getattr(self, key) and needed != given:
                yield InvalidValue(f"{key} needs a {needed}, and the entry has a {given}", f"remove {key}")
        if self.start == "fork" and self.command is None:
            yield InvalidValue("start: fork needs a command", "remove start")
        fixed = [name for change in self.tools.change.values() for name in change.fixed]
        texts = (*self.env, *self.env.values(), *self.headers, *self.headers.values(), *self.args, self.url or "")
        words = {word.strip("-") for text in (*texts, *fixed) for word in re.findall(r"[\w.-]+", text)}
        for name in self.secrets or ():
            if name.lstrip("-") not in words:
                yield InvalidValue(f"secrets names {name!r}, which is not in the entry", "correct the name")
        if (self.max_memory_mb or self.max_cpu_s) and self.command is None:
            problem = "max_memory_mb and max_cpu_s need a command; other servers have no process here"
            yield InvalidValue(problem, "remove them")

    def _faults_of_scope(self) -> Iterator[InvalidValue]:
        """What does not fit the entry's `scope`."""
        for key in _OF_PROCESSES:
            if key in self.model_fields_set and self.scope is not Scope.PROCESS:
                yield InvalidValue(f"{key} needs scope: process", f"remove {key}, or set the scope")
        if self.max_processes is not None and self.min_ready > self.max_processes:
            yield InvalidValue("min_ready is more than max_processes", "lower it")
        if self.scope is Scope.PROCESS and self.url is not None:
            problem = "scope: process needs a command or a factory; the gateway starts no process for a url"
            yield InvalidValue(problem, "use scope: session")


class LeaseDirConfig(Section):
    """The directory of a lease, which servers name as `${lease.dir}`: created for each lease and removed after it."""

    template: str | None = None
    """A directory that is copied for each lease; None makes an empty directory."""
    parent: str | None = None
    """Where the directories are created; None means the system's temporary directory."""

    @field_validator("template", "parent")
    @classmethod
    def _expanded(cls, value: str | None) -> str | None:
        return None if value is None else expand(value)


class GatewayConfig(Section):
    """All servers of one gateway, and bounds that do not belong to a single server."""

    servers: dict[str, ServerConfig]
    """By name."""
    max_sessions: int = Field(default=64, ge=1)
    """Maximum sessions at a time. Connections have no limit, so no session can hold one and starve for another."""
    lease_timeout_s: Seconds = 1800
    """Bound on the wait for slots and connections."""
    reset_timeout_s: Seconds = 30
    """Longest duration of one `reset`."""
    release_timeout_s: Seconds = 10
    """Longest duration of one `release`."""
    lease_dir: LeaseDirConfig = LeaseDirConfig()
    """The directory of each lease."""
    calls: CallsConfig = CallsConfig()

    elicitation: ElicitationConfig | None = None
    """What answers questions to the user; None refuses them."""
    sampling: SamplingConfig | None = None
    """The model for servers' sampling requests; None refuses them."""
    max_requests_per_call: int = Field(default=10, ge=1)
    """How often a server may ask for elicitation or sampling within one call."""

    @model_validator(mode="after")
    def _elicitation_names_a_server(self) -> Self:
        if self.elicitation is not None and self.elicitation.server not in self.servers:
            problem = f"elicitation.server names {self.elicitation.server!r}, which is not one of the servers"
            raise InvalidValue(problem, f"servers: {', '.join(self.servers) or 'none'}")
        return self

    def requiring(self, servers: Collection[str]) -> Self:
        """The same, where a gateway starts with all of `servers` or not at all."""
        entries = {
            name: entry.model_copy(update={"required": entry.required or name in servers})
            for name, entry in self.servers.items()
        }
        return self.model_copy(update={"servers": entries})
