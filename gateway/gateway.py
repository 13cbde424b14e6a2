"""All servers of one worker: started together, leased to trajectories, closed together."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any, Self

import anyio
import structlog

from gateway.config import GatewayConfig, Kind, ServerConfig
from gateway.connection import Connect, Connection, Era
from gateway.errors import ConfigError, GatewayError, LeaseTimeout
from gateway.exchange import Answerer
from gateway.names import expose
from gateway.pool import FreshConnections, Pool, SharedConnection
from gateway.sampling import Sampler
from gateway.session import Session, keeps_state
from gateway.types import Audience, RequestKind, Role, Scope, ToolDefinition

log = structlog.get_logger(__name__)

_CLOSING_SPARE_S = 5.0
"""Beyond the longest `close_timeout_s`: what killing and reaping may take."""


class Gateway:
    """`async with Gateway(config) as gateway:` in one long-lived task; `lease` from any task of the same loop.

    Args:
        config: The servers and the bounds.
        connect: What to connect to for a server, in place of its command, url or factory; None for a server means
            "as configured". Called once for every connection.
        name: Stands in every log line of this gateway.

    Raises, on entry:
        ServerUnavailable: a `required` server did not start (`ConnectTimeout`: not in time).
        ConfigError: an entry names a tool that its server does not have, or a factory that cannot be imported.
    """

    def __init__(self, config: GatewayConfig, *, connect: Connect | None = None, name: str = "gateway") -> None:
        self.config = config
        self.name = name
        self.failures: Mapping[str, GatewayError] = MappingProxyType({})
        """Servers that are not there, and why; none of them is `required`."""
        self.catalogue: Mapping[str, tuple[ToolDefinition, ...]] = MappingProxyType({})
        """All tools by server, the harness's too, as its first connection listed them."""
        self.instructions: Mapping[str, str] = MappingProxyType({})
        self.malformed: Mapping[str, tuple[str, ...]] = MappingProxyType({})
        """By server, one message for each tool it listed that cannot be used."""
        self._connect = connect
        self._log = log.bind(gateway=name)
        self._eras = {server: Era() for server in config.servers}
        self._connections: set[Connection] = set()
        self._pools: dict[str, Pool] = {}
        self._policy_tools: dict[str, ToolDefinition] = {}
        self._warned: set[str] = set()
        self._sampling = sampling_answerer(config)

    async def __aenter__(self) -> Self:
        _refuse_lease_dir(self.config)
        self._places = anyio.CapacityLimiter(self.config.max_sessions)
        # A start is mostly the child's CPU time: more at once only makes all of them miss their bound.
        self._starts = anyio.CapacityLimiter(max(2, os.cpu_count() or 2))
        self._tasks = await anyio.create_task_group().__aenter__()
        try:
            await self._start_all()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._close()

    async def _start_all(self) -> None:
        opened: dict[str, Connection] = {}
        failed: dict[str, GatewayError | ConfigError] = {}

        async def start(server: str) -> None:
            try:
                opened[server] = await self._open(server)
            except (GatewayError, ConfigError) as error:
                failed[server] = error

        async with anyio.create_task_group() as starting:
            for server in self.config.servers:
                starting.start_soon(start, server)
        for server, error in failed.items():
            if isinstance(error, ConfigError) or self.config.servers[server].required:
                raise error
            self._log.warning("server.unavailable", server=server, problem=str(error))
        self._publish({server: opened[server] for server in self.config.servers if server in opened}, failed)

    def _publish(self, opened: Mapping[str, Connection], failed: Mapping[str, Any]) -> None:
        self.failures = MappingProxyType(dict(failed))
        self.instructions = MappingProxyType({server: found.instructions for server, found in opened.items()})
        self.malformed = MappingProxyType({server: found.malformed for server, found in opened.items()})
        for server, connection in opened.items():
            for problem in connection.malformed:
                self._log.warning("server.tool_malformed", server=server, problem=problem)
        chosen = {
            server: choose_tools(server, self.config.servers[server], connection.tools)
            for server, connection in opened.items()
        }
        check_elicitation(self.config, chosen)
        self.catalogue = MappingProxyType(expose(chosen))
        self._policy_tools = {
            tool.exposed_name: tool
            for tools in self.catalogue.values()
            for tool in tools
            if tool.audience is Audience.POLICY
        }
        for server, connection in opened.items():
            self._pools[server] = self._pool(server, connection)

    def _pool(self, server: str, first: Connection) -> Pool:
        config, open_connection = self.config.servers[server], partial(self._open, server)
        if config.scope is Scope.SHARED:
            return SharedConnection(open_connection, first)
        return FreshConnections(open_connection, first, tasks=self._tasks, min_ready=config.min_ready)

    async def _open(self, server: str) -> Connection:
        config = self.config.servers[server]
        if config.kind is not Kind.STDIO:
            return await self._open_now(server, config)
        async with self._starts:
            return await self._open_now(server, config)

    async def _open_now(self, server: str, config: ServerConfig) -> Connection:
        asks, patience_s = requests_answered(self.config)
        connection = Connection(server, config, self._connect, self._eras[server], asks=asks, patience_s=patience_s)
        self._connections.add(connection)
        self._tasks.start_soon(self._own, connection)
        try:
            await connection.started()
        except BaseException:
            connection.end("it did not start")
            raise
        self._compare(connection)
        return connection

    async def _own(self, connection: Connection) -> None:
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)

    def _compare(self, connection: Connection) -> None:
        """Log it when a server came back with other tools than those that were published."""
        published = {tool.name: tool.digest for tool in self.catalogue.get(connection.server, ())}
        found = {tool.name: tool.digest for tool in connection.tools}
        changed = sorted(name for name, digest in published.items() if found.get(name) != digest)
        if changed and f"changed {connection.server}" not in self._warned:
            self._warned.add(f"changed {connection.server}")
            self._log.warning("server.tools_changed", server=connection.server, tools=changed)

    async def _close(self) -> None:
        for pool in self._pools.values():
            pool.close()
        longest = max((config.close_timeout_s for config in self.config.servers.values()), default=0.0)
        with anyio.move_on_after(longest + _CLOSING_SPARE_S, shield=True):
            for connection in list(self._connections):
                connection.end("the gateway is closing")
            for connection in list(self._connections):
                await connection.done.wait()
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)

    def lease(
        self, *, trajectory: str, task: str | None, seed: int, tools: Collection[str] | None = None
    ) -> AbstractAsyncContextManager[Session]:
        """A world for one trajectory: a place, connections, every server reset; given back when the block is left.

        Args:
            trajectory: An id unlike any other's; servers keep state apart by it.
            task: What `reset` sets up; None leaves the servers as they are, to ask them which tasks there are.
            seed: Goes to `reset` and with every request.
            tools: Exposed names of the tools the policy may use in this trajectory; None means all.

        Raises:
            ConfigError: `tools` names one that is not there.
            LeaseTimeout: no place, or no connection, within `lease_timeout_s`.
            GatewayError: a server could not be reached, or refused the reset.
        """
        return self._lease(trajectory, task, seed, self._select(tools))

    @asynccontextmanager
    async def _lease(
        self, trajectory: str, task: str | None, seed: int, tools: Mapping[str, ToolDefinition]
    ) -> AsyncGenerator[Session]:
        # No cancel scope stays open over the yield: the block may be left in another task than entered it.
        asked, place = anyio.current_time(), object()
        deadline = asked + self.config.lease_timeout_s
        with anyio.CancelScope(deadline=deadline) as waiting:
            await self._places.acquire_on_behalf_of(place)
        if waiting.cancelled_caught:
            raise LeaseTimeout(
                f"all {self.config.max_sessions} sessions were in use for {self.config.lease_timeout_s:g} s"
            )
        taken: dict[str, Connection] = {}
        try:
            await self._take(self._needed(tools), taken, deadline)
            session = self._session(trajectory, seed, tools, taken, anyio.current_time() - asked)
            try:
                if task is not None:
                    await session.reset(task)
                yield session
            finally:
                await self._release(session)
                session.end()
        finally:
            for server, connection in taken.items():
                self._pools[server].give_back(connection)
            self._places.release_on_behalf_of(place)

    def _session(
        self,
        trajectory: str,
        seed: int,
        tools: Mapping[str, ToolDefinition],
        taken: Mapping[str, Connection],
        lease_wait_s: float,
    ) -> Session:
        reopen: dict[str, Callable[[], Any]] = {
            server: self._pools[server].take
            for server in taken
            if not keeps_state(self.config.servers[server], self.catalogue[server])
        }
        harness = {
            (tool.role, server): tool for server in taken for tool in self.catalogue[server] if tool.role is not None
        }
        return Session(
            trajectory=trajectory,
            seed=seed,
            tools=MappingProxyType(dict(tools)),
            lease_wait_s=lease_wait_s,
            _config=self.config,
            _harness=harness,
            _connections=dict(taken),
            _reopen=reopen,
            _warned=self._warned,
            _sampling=self._sampling,
        )

    def _select(self, names: Collection[str] | None) -> Mapping[str, ToolDefinition]:
        if names is None:
            return self._policy_tools
        for name in names:
            if name not in self._policy_tools:
                remedy = f"available: {', '.join(self._policy_tools) or 'none'}"
                if self.failures:
                    remedy += f"; servers that did not start: {', '.join(self.failures)}"
                raise ConfigError(f"unknown tool {name!r}", key="tools", remedy=remedy)
        return {name: tool for name, tool in self._policy_tools.items() if name in names}

    def _needed(self, tools: Mapping[str, ToolDefinition]) -> list[str]:
        """Servers with a tool that the policy may use, or with a part in the harness."""
        used = {tool.server for tool in tools.values()}
        return [
            server
            for server, definitions in self.catalogue.items()
            if server in used or any(tool.role is not None for tool in definitions)
        ]

    async def _take(self, servers: Collection[str], taken: dict[str, Connection], deadline: float) -> None:
        errors: list[GatewayError] = []

        async def take(server: str) -> None:
            try:
                taken[server] = await self._pools[server].take()
            except GatewayError as error:
                errors.append(error)

        with anyio.CancelScope(deadline=deadline) as waiting:
            async with anyio.create_task_group() as tasks:
                for server in servers:
                    tasks.start_soon(take, server)
        if errors:
            raise errors[0]
        if waiting.cancelled_caught:
            missing = ", ".join(server for server in servers if server not in taken)
            raise LeaseTimeout(f"no connection to {missing} within {self.config.lease_timeout_s:g} s")

    async def _release(self, session: Session) -> None:
        with anyio.move_on_after(self.config.release_timeout_s, shield=True) as bound:
            try:
                await session.release()
            except GatewayError as error:
                # The trajectory is over and its result stands; what the server failed to tidy up is the server's.
                self._log.warning("lease.release_failed", trajectory=session.trajectory, problem=str(error))
        if bound.cancelled_caught:
            self._log.warning("lease.release_timed_out", trajectory=session.trajectory)


def choose_tools(server: str, config: ServerConfig, tools: Collection[ToolDefinition]) -> tuple[ToolDefinition, ...]:
    """Apply an entry's `tools` and check its `roles`. Raises `ConfigError` for a name the server does not have."""
    names = {tool.name for tool in tools}
    wanted = {"tools": config.tools or (), "roles": config.roles.values()}
    for key, listed in wanted.items():
        for name in listed:
            if name not in names:
                raise ConfigError(
                    f"the server has no tool {name!r}",
                    key=f"servers.{server}.{key}",
                    remedy=f"its tools: {', '.join(sorted(names)) or 'none'}",
                )
    for role, count in Counter(tool.role for tool in tools if tool.role is not None).items():
        if count > 1:
            raise ConfigError(
                f"the server has {count} tools with the role {role}",
                key=f"servers.{server}.roles",
                remedy=f"name the one to use: roles: {{{role}: TOOL}}",
            )
    allowed = config.tools
    return tuple(tool for tool in tools if tool.role is not None or allowed is None or tool.name in allowed)


def sampling_answerer(config: GatewayConfig) -> Answerer | None:
    if config.sampling is None:
        return None
    return Answerer(answer=Sampler(config.sampling).answer, timeout_s=config.sampling.timeout_s)


def requests_answered(config: GatewayConfig) -> tuple[frozenset[RequestKind], float]:
    """Which requests of servers somebody is configured to answer, and how long the slowest of them may take."""
    bounds = {
        kind: section.timeout_s
        for kind, section in (
            (RequestKind.ELICITATION, config.elicitation),
            (RequestKind.SAMPLING, config.sampling),
        )
        if section is not None
    }
    return frozenset(bounds), max(bounds.values(), default=0.0)


def check_elicitation(config: GatewayConfig, chosen: Mapping[str, Collection[ToolDefinition]]) -> None:
    """Raises `ConfigError` where the server that shall answer elicitation has no tool for it."""
    if config.elicitation is None or (server := config.elicitation.server) not in chosen:
        return
    if not any(tool.role is Role.ELICIT for tool in chosen[server]):
        raise ConfigError(
            f"{server!r} has no tool with the role elicit",
            key="elicitation.server",
            remedy="mark one in its _meta, or by roles: {elicit: TOOL}",
        )


def _refuse_lease_dir(config: GatewayConfig) -> None:
    for server, entry in config.servers.items():
        if any("${lease.dir}" in text for text in (entry.cwd or "", *entry.args, *entry.env.values())):
            raise ConfigError(
                "${lease.dir} is not supported yet",
                key=f"servers.{server}",
                remedy="name a directory, or use scope: process with a server that makes its own",
            )
