"""One trajectory's view of its servers: its tools, its harness, its state; and what to do when a call breaks."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import anyio
import structlog

from gateway.config.models import GatewayConfig, ServerConfig
from gateway.config.selection import fill
from gateway.connection.connection import Connection
from gateway.connection.exchange import Answerer, Exchange, Question
from gateway.errors import DeliveryUnknown, GatewayError, HarnessError, ServerUnavailable, ToolsChanged
from gateway.schemas.check import check_arguments, check_value
from gateway.schemas.coerce import coerce
from gateway.types import (
    REWARD_META,
    SEED_META,
    TRAJECTORY_META,
    CallFault,
    RequestKind,
    Role,
    Scope,
    ServerEvents,
    ToolDefinition,
    ToolResult,
)

log = structlog.get_logger(__name__)

REPEATABLE = frozenset(
    {Role.RESET, Role.REPLY, Role.ELICIT, Role.SCORE, Role.RELEASE, Role.SNAPSHOT, Role.TASKS, Role.EXPERT}
)
"""Harness roles that are idempotent by contract."""
_SILENT = frozenset({Role.RESET, Role.RELEASE, Role.RESTORE})
"""Roles whose answer is empty by contract, so that a foreign tool may answer them with anything."""
_RESEND_PAUSE_S = 0.2


@dataclass(kw_only=True, eq=False)
class Session:
    """Given out by `Gateway.lease`; valid until the lease ends. Calls may run in parallel."""

    trajectory: str
    seed: int
    tools: Mapping[str, ToolDefinition]
    """What the policy may call, by exposed name."""
    lease_wait_s: float
    """How long this session waited for its place and its connections."""
    _config: GatewayConfig
    _harness: Mapping[tuple[Role, str], ToolDefinition]
    _connections: dict[str, Connection]
    _reopen: Mapping[str, Callable[[], Awaitable[Connection]]]
    """By server, where a dead connection can be replaced without losing this trajectory's state."""
    _changed: Mapping[str, ToolsChanged]
    """Servers of the gateway that define their tools otherwise since; it grows."""
    _settle: Callable[[Collection[Connection]], Awaitable[None]]
    _warned: set[str]
    """Shared by the gateway's sessions, for what is logged once a server."""
    _sampling: Answerer | None = None
    lease_dir: Path | None = None
    """The directory that servers name as `${lease.dir}`; it lasts as long as the lease."""
    _alone: frozenset[str] = frozenset()
    """Servers whose processes served no other trajectory."""

    def __post_init__(self) -> None:
        self._meta = {TRAJECTORY_META: self.trajectory, SEED_META: self.seed}
        self._heard = ServerEvents()
        self._elicited = 0
        self._eliciting = anyio.Lock()
        self._answerers = self._who_answers()
        self._ended = False
        self._unhealthy: set[str] = set()

    def end(self) -> None:
        """Refuse every later call: the world is released and may be somebody else's."""
        self._ended = True

    def check(self) -> None:
        """Raises `ToolsChanged` where a server of this session defines its tools otherwise since the run began."""
        for server in self._changed:
            if server in self._connections:
                raise self._changed[server].again()

    async def wait_for_tool_changes(self) -> None:
        """`check`, once everything that its servers have announced so far was looked at."""
        await self._settle(self._connections.values())
        self.check()

    def healthy(self, servers: Iterable[str]) -> bool:
        """Whether every call to these servers ended as it should, so that a reset is enough to use them again."""
        return self._unhealthy.isdisjoint(servers)

    def connection(self, server: str) -> Connection:
        """What this session has to `server`, for programs that look at servers themselves."""
        return self._connections[server]

    def has(self, role: Role, server: str) -> bool:
        """Whether `server` has a harness tool for `role`."""
        return (role, server) in self._harness

    def drain_server_events(self) -> ServerEvents:
        """What servers asked for and said within calls since this was last asked."""
        taken, self._heard = self._heard, ServerEvents()
        return taken

    async def call(self, name: str, arguments: Any) -> ToolResult:
        """Call one of `tools` for the policy. What the policy did wrong is an error result for it to read.

        Raises:
            GatewayError: the world broke; nothing says whether the policy was right.
        """
        tool = self.tools.get(name)
        if tool is None:
            return ToolResult.error(
                f"Unknown tool {name!r}. Available tools: {', '.join(self.tools) or 'none'}",
                fault=CallFault.UNKNOWN_TOOL,
            )
        fixed = self._filled(tool)
        faults = check_arguments(tool, arguments, fixed=fixed)
        coerced = coerce(tool, arguments, fixed=fixed) if faults else None
        if coerced is not None:
            arguments, faults = coerced.arguments, []
        if faults:
            return ToolResult.error(
                f"Invalid arguments for {name}: " + "; ".join(faults), fault=CallFault.INVALID_ARGUMENTS
            )
        try:
            result = await self._send(tool, arguments, timeout_s=self._config.servers[tool.server].call_timeout_s)
        except (DeliveryUnknown, ServerUnavailable):
            exhausted = self._connections[tool.server].exhausted
            if not exhausted or tool.server not in self._alone or self._ended:
                raise
            # The policy's own doing, in a process of its own: it may read what it did and go on without that server.
            return ToolResult.error(f"{name} is gone: its server was ended because {exhausted}. What it held is lost.")
        if REWARD_META in result.meta and not self._config.servers[tool.server].trusted:
            self._warn_once(tool.server)
        return result if coerced is None else replace(result, coerced=coerced.changes)

    async def invoke(self, role: Role, arguments: Mapping[str, Any], *, server: str) -> ToolResult:
        """Call a harness tool; the result's `structured` is its answer.

        A foreign tool's answer may be JSON text, and it is sent only the arguments that its schema knows.

        Raises:
            HarnessError: there is no such tool, it said no, or its answer is no object.
            GatewayError: the world broke.
        """
        tool = self._harness.get((role, server))
        if tool is None:
            raise HarnessError(f"has no {role} tool", server=server, role=role)
        result = await self._send(tool, _known_arguments(tool, arguments), timeout_s=self._bound(role, server))
        if result.is_error:
            self._unhealthy.add(server)
            problem = f"{role} was refused: {result.text[:500]}"
            raise HarnessError(problem, server=server, tool=tool.name, role=role, refused=True)
        structured = _answer(result)
        if structured is None and role not in _SILENT:
            self._unhealthy.add(server)
            raise HarnessError(f"{role} answered without an object", server=server, tool=tool.name, role=role)
        return replace(result, structured=structured or {})

    async def reset(self, task: str) -> None:
        """Reset every server that can be reset, all at once. Raises `GatewayError`."""
        arguments = {"task": task, "seed": self.seed}
        await self._each(Role.RESET, arguments)

    async def release(self) -> None:
        """Tell every server that the trajectory is over. Raises the first `GatewayError`, after all were told."""
        await self._each(Role.RELEASE, {})

    async def _each(self, role: Role, arguments: Mapping[str, Any]) -> None:
        servers = [server for known, server in self._harness if known is role]
        if len(servers) == 1:
            await self.invoke(role, arguments, server=servers[0])
            return
        errors: list[GatewayError] = []

        async def invoke(server: str) -> None:
            try:
                await self.invoke(role, arguments, server=server)
            except GatewayError as error:
                errors.append(error)

        async with anyio.create_task_group() as tasks:
            for server in servers:
                tasks.start_soon(invoke, server)
        if errors:
            raise errors[0]

    def _bound(self, role: Role, server: str) -> float:
        match role:
            case Role.RESET:
                return self._config.reset_timeout_s
            case Role.RELEASE:
                return self._config.release_timeout_s
            case _:
                return self._config.servers[server].call_timeout_s

    async def _send(self, tool: ToolDefinition, arguments: Mapping[str, Any], *, timeout_s: float) -> ToolResult:
        try:
            return await self._send_at_most_twice(tool, arguments, timeout_s)
        except BaseException:
            self._unhealthy.add(tool.server)  # cancelled, too: the server may still be at work
            raise

    async def _send_at_most_twice(
        self, tool: ToolDefinition, arguments: Mapping[str, Any], timeout_s: float
    ) -> ToolResult:
        """One request, and at most one more: when the first surely did not arrive, or may arrive twice without harm,
        and the server it would reach still knows this trajectory."""
        if self._ended:
            raise ServerUnavailable("the lease has ended", server=tool.server, tool=tool.name)
        self._check(tool)
        connection, exchange = self._connections[tool.server], self._exchange(tool)
        arguments = {**arguments, **self._filled(tool)}
        try:
            return await connection.call(tool, arguments, meta=self._meta, timeout_s=timeout_s, exchange=exchange)
        except ServerUnavailable as error:
            broken = error
        except DeliveryUnknown as error:
            if not (tool.safe_to_resend or tool.role in REPEATABLE):
                raise
            broken = error
        again = await self._once_more(connection, broken)
        self._check(tool)
        log.info("session.resent", trajectory=self.trajectory, server=tool.server, tool=tool.name, after=broken.kind)
        exchange = self._exchange(tool)
        return await again.call(tool, arguments, meta=self._meta, timeout_s=timeout_s, exchange=exchange)

    def _filled(self, tool: ToolDefinition) -> dict[str, Any]:
        """What the gateway adds to the arguments of each call in this trajectory."""
        return fill(tool.fixed, trajectory=self.trajectory, seed=self.seed) if tool.fixed else {}

    def _exchange(self, tool: ToolDefinition) -> Exchange:
        # Whoever answers for the user is not asked what it asks itself.
        withheld = RequestKind.ELICITATION if tool.role is Role.ELICIT else None
        return Exchange(
            server=tool.server,
            tool=tool.name,
            trajectory=self.trajectory,
            answerers={kind: answerer for kind, answerer in self._answerers.items() if kind is not withheld},
            most_requests=self._config.max_requests_per_call,
            heard=self._heard,
            log_level=self._config.servers[tool.server].log_level,
        )

    def _who_answers(self) -> dict[RequestKind, Answerer]:
        answerers: dict[RequestKind, Answerer] = {}
        if self._config.elicitation is not None:
            timeout_s = self._config.elicitation.timeout_s
            answerers[RequestKind.ELICITATION] = Answerer(answer=self._elicit, timeout_s=timeout_s)
        if self._sampling is not None:
            answerers[RequestKind.SAMPLING] = self._sampling
        return answerers

    async def _elicit(self, question: Question) -> dict[str, Any]:
        """Ask the user simulator; one question at a time, numbered from 1, so that a repeat changes nothing."""
        assert self._config.elicitation is not None
        server = self._config.elicitation.server
        schema = cast("Mapping[str, Any]", question.params.get("requestedSchema") or {})
        async with self._eliciting:
            self._elicited += 1
            arguments = {
                "seq": self._elicited,
                "message": question.params["message"],
                "schema": schema,
                "server": question.server,
                "tool": question.tool,
            }
            result = await self.invoke(Role.ELICIT, arguments, server=server)
        answer = result.structured or {}
        action, content = answer.get("action"), answer.get("content")
        if action not in ("accept", "decline", "cancel"):
            raise HarnessError(f"elicit answered with the action {action!r}", server=server)
        if action != "accept":
            return {"action": action}
        if faults := check_value(schema, content, subject=f"{server}/elicit"):
            raise HarnessError(f"elicit answered off the schema: {'; '.join(faults)}", server=server)
        return {"action": action, "content": content}

    def _check(self, tool: ToolDefinition) -> None:
        if tool.role is not Role.RELEASE:  # which tidies up and is shown to nobody
            self.check()

    async def _once_more(self, connection: Connection, broken: GatewayError) -> Connection:
        server = connection.server
        if connection.alive:
            await anyio.sleep(_RESEND_PAUSE_S)
            return connection
        reopen = self._reopen.get(server)
        if reopen is None:
            if isinstance(broken, DeliveryUnknown):
                raise broken
            lost = f"its process has ended and this trajectory's state with it: {broken}"
            raise ServerUnavailable(lost, server=server, tool=broken.tool) from broken
        self._connections[server] = again = await reopen()
        return again

    def _warn_once(self, server: str) -> None:
        if server not in self._warned:
            self._warned.add(server)
            log.warning("session.reward_ignored", server=server, remedy="set trusted: true to accept its rewards")


def keeps_state(config: ServerConfig, tools: tuple[ToolDefinition, ...]) -> bool:
    """Whether something of a trajectory may be lost with a server's connection.

    Not where it is shared, takes no part in the trajectory's harness, and every tool of it only reads. A server behind
    a url goes on when a connection to it ends, so there the tools may also write.
    """
    takes_part = any(tool.role not in (None, Role.TASKS, Role.EXPERT) for tool in tools)
    own_process = config.url is None
    writes = any(not tool.read_only for tool in tools if tool.role is None)
    return config.scope is not Scope.SHARED or takes_part or (own_process and writes)


def _known_arguments(tool: ToolDefinition, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = tool.input_schema.get("properties")
    if not isinstance(properties, Mapping):
        return arguments
    return {name: value for name, value in arguments.items() if name in properties}


def _answer(result: ToolResult) -> Mapping[str, Any] | None:
    structured: Any = result.structured
    if structured is None:
        try:
            structured = json.loads(result.text)
        except (ValueError, RecursionError):
            return None
    if not isinstance(structured, Mapping):
        return None
    answer = cast("Mapping[str, Any]", structured)
    # Servers with untyped return values put the object under `result`.
    inner = answer.get("result")
    return cast("Mapping[str, Any]", inner) if len(answer) == 1 and isinstance(inner, Mapping) else answer
