"""One trajectory's view of its servers: the policy's tools, the harness, and answers to the servers' requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import structlog

from mcp_rollout.gateway.config.calls import CallOrder
from mcp_rollout.gateway.config.models import GatewayConfig
from mcp_rollout.gateway.config.tool_selection import fill
from mcp_rollout.gateway.connection.connection import AnyConnection, Connection
from mcp_rollout.gateway.connection.in_flight import Answerer, InFlightCall, OutgoingCall, RawAnswer
from mcp_rollout.gateway.errors import GatewayError, HarnessError
from mcp_rollout.gateway.leases.harness_calls import UserElicitation, known_arguments, structured_answer
from mcp_rollout.gateway.leases.sending import Sending, caused_by_policy
from mcp_rollout.gateway.schemas.arguments import Prepared, encodable, prepare
from mcp_rollout.gateway.server_events import RequestKind, ServerEvents
from mcp_rollout.gateway.types import REWARD_META, CallFault, Role, ToolDefinition, ToolResult

log = structlog.get_logger(__name__)

_WITHOUT_ANSWER = frozenset({Role.RESET, Role.RELEASE, Role.RESTORE})
"""Roles whose answer is empty by contract, so that a foreign tool may answer with anything."""


@dataclass(kw_only=True, eq=False)
class Session:
    """Given out by `Gateway.lease`; valid until the lease ends. Calls may run in parallel."""

    trajectory: str
    seed: int
    tools: Mapping[str, ToolDefinition]
    """What the policy may call, by exposed name; `reveal` adds to it."""
    later_tools: Mapping[str, ToolDefinition]
    """What the policy may call once it is revealed. Until then these names are unknown."""
    lease_wait_s: float
    """Seconds that this session waited for its slot and its connections."""
    lease_dir: Path | None = None
    """The directory that servers name as `${lease.dir}`; it exists as long as the lease."""
    _config: GatewayConfig
    _harness: Mapping[tuple[Role, str], ToolDefinition]
    _sending: Sending
    _wait_for_changes: Callable[[Collection[AnyConnection]], Awaitable[None]]
    _warned: set[str]
    """Servers that a warning was logged for; shared by the gateway's sessions."""
    _sampling: Answerer | None = None

    def __post_init__(self) -> None:
        self._events = ServerEvents()
        # The lock is fair, so calls that begin at once are sent in the order in which they begin.
        self._one_call = anyio.Lock() if self._config.calls.order is CallOrder.WRITTEN else nullcontext()
        self._as_sent = self._config.calls.as_sent
        self._answerers: dict[RequestKind, Answerer] = {}
        if (elicitation := self._config.elicitation) is not None:
            user = UserElicitation(partial(self._ask_user, elicitation.server), elicitation.server)
            # One question at a time: questions of parallel calls reach the user in the order of their numbers.
            self._answerers[RequestKind.ELICITATION] = Answerer(
                answer=user.answer, timeout_s=elicitation.timeout_s, queue=anyio.CapacityLimiter(1)
            )
        if self._sampling is not None:
            self._answerers[RequestKind.SAMPLING] = self._sampling

    def end(self) -> None:
        """Refuse every later call: the world is released and may belong to another trajectory."""
        self._sending.ended = True

    def check(self) -> None:
        """Raise `ToolsChanged` where a server of this session has other tools than at the start of the run."""
        self._sending.check_tools()

    async def wait_for_tool_changes(self) -> None:
        """`check`, once every change that the session's servers have announced so far was looked into."""
        await self._wait_for_changes(self._sending.connections.values())
        self.check()

    def healthy(self, servers: Iterable[str]) -> bool:
        """Whether a reset makes these servers fit for another trajectory: no call failed or is still running."""
        return self._sending.healthy(servers)

    def connection(self, server: str) -> Connection:
        """The session's connection to `server`, for programs that examine servers of this gateway themselves."""
        return self._sending.local(server)

    @property
    def sending(self) -> Sending:
        """What sends the session's calls."""
        return self._sending

    def has(self, role: Role, server: str) -> bool:
        """Whether `server` has a harness tool for `role`."""
        return (role, server) in self._harness

    def drain_server_events(self) -> ServerEvents:
        """Requests and notifications of servers within calls since the last drain."""
        drained, self._events = self._events, ServerEvents()
        return drained

    def reveal(self, names: Iterable[str]) -> None:
        """Move tools from `later_tools` to `tools`; names that are in neither are ignored."""
        found = {name: self.later_tools[name] for name in names if name in self.later_tools}
        self.tools = {**self.tools, **found}
        self.later_tools = {name: tool for name, tool in self.later_tools.items() if name not in found}

    async def call(self, name: str, arguments: Any, *, raw: RawAnswer | None = None) -> ToolResult:
        """Call one of `tools` for the policy. A mistake of the policy is an error result for it to read.

        Args:
            raw: Gets the server's own answer, where the call reached it.

        Raises:
            GatewayError: the world broke; the policy did not cause it.
        """
        tool = self.tools.get(name)
        if tool is None:
            known = ", ".join(self.tools) or "none"
            return ToolResult.error(f"Unknown tool {name!r}. Available tools: {known}", fault=CallFault.UNKNOWN_TOOL)
        prepared = self.prepared(tool, arguments)
        if prepared.faults:
            return ToolResult.error(prepared.refusal(name), fault=CallFault.INVALID_ARGUMENTS)
        config = self._config.servers[tool.server]
        try:
            async with self._one_call:
                result = await self._send(tool, prepared.arguments, timeout_s=config.call_timeout_s, raw=raw)
        except GatewayError as error:
            if error.fault is None:
                raise
            return caused_by_policy(name, error, timeout_s=config.call_timeout_s)
        if REWARD_META in result.meta and not config.trusted and tool.server not in self._warned:
            self._warned.add(tool.server)
            remedy = "set trusted: true to accept its rewards"
            log.warning("session.reward_ignored", server=tool.server, remedy=remedy)
        return replace(result, coerced=prepared.changes) if prepared.changes else result

    async def invoke(self, role: Role, arguments: Mapping[str, Any], *, server: str) -> ToolResult:
        """Call a harness tool; the result's `structured` is its answer.

        A foreign tool's answer may be JSON text, and it is sent only the arguments that its schema knows.

        Raises:
            HarnessError: there is no such tool, it refused, or its answer is not an object.
            GatewayError: the world broke.
        """
        tool = self._harness.get((role, server))
        if tool is None:
            raise HarnessError(f"has no {role} tool", server=server, role=role)
        known = {**encodable(known_arguments(tool, arguments)), **self.fixed_arguments(tool)}
        result = await self._send(tool, known, timeout_s=self._timeout_s(role, server))
        if result.is_error:
            self._sending.mark_failed(server)
            problem = f"{role} was refused: {result.text[:500]}"
            raise HarnessError(problem, server=server, tool=tool.name, role=role, refused=True)
        structured = structured_answer(result)
        if structured is None and role not in _WITHOUT_ANSWER:
            self._sending.mark_failed(server)
            raise HarnessError(f"{role} answered without an object", server=server, tool=tool.name, role=role)
        return replace(result, structured=structured or {})

    async def send_as_recorded(self, server: str, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Send a call of a cassette: by the server's own name of the tool, and with the arguments exactly as given.

        Raises:
            KeyError: this session has no such tool.
            GatewayError: the world broke.
        """
        return await self.send(self.all_tools[server, name], arguments)

    @property
    def all_tools(self) -> Mapping[tuple[str, str], ToolDefinition]:
        """By server and the server's own name: what the policy may call, now or later, and the harness's tools."""
        known = (*self.tools.values(), *self.later_tools.values(), *self._harness.values())
        return {(tool.server, tool.name): tool for tool in known}

    async def send(
        self, tool: ToolDefinition, arguments: Mapping[str, Any], events: ServerEvents | None = None
    ) -> ToolResult:
        """Send a call with exactly these arguments.

        Args:
            events: Takes what the server asks and reports within it; by default `drain_server_events` has it.

        Raises:
            GatewayError: the world broke.
        """
        return await self._send(tool, arguments, timeout_s=self._timeout_s(tool.role, tool.server), events=events)

    async def reset(self, task: str) -> None:
        """Reset every server that can be reset, concurrently. Raises `GatewayError`."""
        await self._invoke_all(Role.RESET, {"task": task, "seed": self.seed})

    async def release(self) -> None:
        """Release the trajectory on every server. Raises the first `GatewayError`, after all were called."""
        await self._invoke_all(Role.RELEASE, {})

    @property
    def restorable(self) -> bool:
        """Whether each server that keeps state of the trajectory has both roles, `snapshot` and `restore`."""
        return all(self.has(role, server) for server in self._stateful for role in (Role.SNAPSHOT, Role.RESTORE))

    async def snapshot(self) -> dict[str, Any]:
        """The state of each server that can be restored. Raises `GatewayError`."""
        states: dict[str, Any] = {}
        for server in (server for role, server in self._harness if role is Role.SNAPSHOT):
            states[server] = (await self.invoke(Role.SNAPSHOT, {}, server=server)).structured
        return states

    async def restore(self, states: Mapping[str, Any]) -> None:
        """Put the states that `snapshot` returned, of any session of the same task, in place of the servers' own.

        Raises:
            GatewayError: the world broke.
        """
        for server, state in states.items():
            await self.invoke(Role.RESTORE, state, server=server)

    @property
    def _stateful(self) -> set[str]:
        """Servers with a part in the harness of a trajectory, or with a tool that does more than read."""
        tools = [*self.tools.values(), *self.later_tools.values()]
        of_harness = {server for role, server in self._harness if role not in (Role.TASKS, Role.EXPERT)}
        return of_harness | {tool.server for tool in tools if not tool.read_only}

    async def _invoke_all(self, role: Role, arguments: Mapping[str, Any]) -> None:
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

    def _timeout_s(self, role: Role | None, server: str) -> float:
        match role:
            case Role.RESET:
                return self._config.reset_timeout_s
            case Role.RELEASE:
                return self._config.release_timeout_s
            case _:
                return self._config.servers[server].call_timeout_s

    def call_timeout_s(self, server: str) -> float:
        """Longest duration of one call to a server."""
        return self._config.servers[server].call_timeout_s

    def prepared(self, tool: ToolDefinition, arguments: Any) -> Prepared:
        """What is sent of a call's arguments, or why the call is not sent."""
        fixed = self.fixed_arguments(tool) if tool.fixed else None
        return prepare(tool, arguments, fixed=fixed, as_sent=self._as_sent)

    def fixed_arguments(self, tool: ToolDefinition) -> dict[str, Any]:
        """The arguments that the gateway adds to each call of a tool in this trajectory."""
        return self.filled(tool.fixed) if tool.fixed else {}

    def filled(self, value: Any) -> Any:
        """A value with this trajectory's `${trajectory.id}`, `${trajectory.seed}` and `${lease.dir}`."""
        return fill(value, trajectory=self.trajectory, seed=self.seed, lease_dir=self.lease_dir)

    async def _ask_user(self, server: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        return (await self.invoke(Role.ELICIT, arguments, server=server)).structured or {}

    def _send(
        self,
        tool: ToolDefinition,
        arguments: Mapping[str, Any],
        *,
        timeout_s: float,
        events: ServerEvents | None = None,
        raw: RawAnswer | None = None,
    ) -> Coroutine[Any, Any, ToolResult]:
        nested, answerers = tool.role is Role.ELICIT, self._answerers
        if nested:  # the tool that answers for the user cannot ask the user itself
            answerers = {kind: each for kind, each in answerers.items() if kind is not RequestKind.ELICITATION}
        in_flight = partial(
            InFlightCall,
            server=tool.server,
            tool=tool.name,
            trajectory=self.trajectory,
            answerers=answerers,
            most_requests=self._config.max_requests_per_call,
            events=self._events if events is None else events,
            log_level=self._config.servers[tool.server].log_level,
            nested=nested,
            raw=raw,
        )
        return self._sending.send(OutgoingCall(tool, arguments, timeout_s, in_flight))
