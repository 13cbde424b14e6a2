"""All servers of one worker: started together, leased to trajectories, closed together."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self
from uuid import uuid4

import anyio
import structlog

from gateway.catalogue import select_tools
from gateway.config import GatewayConfig, Kind, ServerConfig
from gateway.connection import Connect, Connection, Era
from gateway.errors import ConfigError, GatewayError, LeaseTimeout, ServerUnavailable
from gateway.exchange import Answerer
from gateway.hidden_text import Finding, find_hidden, find_hidden_in_tool
from gateway.janitor import OWNER, Janitor
from gateway.lease_dir import bundled, placed
from gateway.names import expose
from gateway.offers import made_tool, offered_tools
from gateway.places import Places
from gateway.pool import Bundle, BundlePool, SharedConnection
from gateway.sampling import Sampler
from gateway.session import Session, keeps_state
from gateway.types import Audience, RequestKind, Role, Scope, ToolDefinition, ToolResult
from gateway.watch import ToolWatch

log = structlog.get_logger(__name__)

_SESSIONS = ""
"""The key of the gateway's own places; the others are names of servers."""
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
        ConfigError: an entry names a tool that its server does not have; or the factory of a `required` server cannot
            be imported.
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
        self.hidden_text: Mapping[str, tuple[Finding, ...]] = MappingProxyType({})
        """By server, characters in its tools and instructions that people do not see and a model reads."""
        self._connect = connect
        self._log = log.bind(gateway=name)
        self._eras = {server: Era() for server in config.servers}
        self._connections: set[Connection] = set()
        self._shared: dict[str, SharedConnection] = {}
        self._pools: dict[str, BundlePool] = {}
        """By server; servers that share a directory share a pool."""
        self._janitor: Janitor | None = None
        self._exits = AsyncExitStack()
        self._policy_tools: dict[str, ToolDefinition] = {}
        self._warned: set[str] = set()
        self._sampling = sampling_answerer(config)

    async def __aenter__(self) -> Self:
        self._bundled = bundled(self.config)
        # A start is mostly the child's CPU time: more at once only makes all of them miss their bound. By server, since
        # one whose starts hang would keep the others from starting at all.
        most = max(2, os.cpu_count() or 2)
        self._starts = {server: anyio.CapacityLimiter(most) for server in self.config.servers}
        if any(entry.kind is Kind.STDIO for entry in self.config.servers.values()):
            directories = self.config.lease_dir if self._bundled else None
            self._janitor = await self._exits.enter_async_context(Janitor(directories))
        self._tasks = await anyio.create_task_group().__aenter__()
        self._watch = ToolWatch(self._tasks)
        self._tasks.start_soon(self._watch.run)
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
        directory = await self._directory() if self._bundled else None

        async def start(server: str) -> None:
            try:
                opened[server] = await self._open(server, directory)
            except (GatewayError, ConfigError) as error:
                failed[server] = error

        async with anyio.create_task_group() as starting:
            for server in self.config.servers:
                starting.start_soon(start, server)
        failures: dict[str, GatewayError] = {}
        for server, error in failed.items():
            if self.config.servers[server].required:
                raise error
            self._log.warning("server.unavailable", server=server, problem=str(error))
            if isinstance(error, ConfigError):  # a factory that cannot be imported
                unavailable = ServerUnavailable(error.problem, server=server)
                unavailable.__cause__ = error
                error = unavailable
            failures[server] = error
        opened = {server: opened[server] for server in self.config.servers if server in opened}
        self._publish(opened, failures)
        self._pool(opened, directory)

    def _publish(self, opened: Mapping[str, Connection], failed: Mapping[str, GatewayError]) -> None:
        self.failures = MappingProxyType(dict(failed))
        self.instructions = MappingProxyType({server: found.instructions for server, found in opened.items()})
        self.malformed = MappingProxyType({server: found.malformed for server, found in opened.items()})
        for server, connection in opened.items():
            for problem in connection.malformed:
                self._log.warning("server.tool_malformed", server=server, problem=problem)
        self.hidden_text = MappingProxyType({server: _hidden_text(found) for server, found in opened.items()})
        for server, findings in self.hidden_text.items():
            if findings:
                self._log.warning("server.hidden_text", server=server, findings=[str(found) for found in findings])
        chosen = {server: self._chosen(server, connection) for server, connection in opened.items()}
        check_elicitation(self.config, chosen)
        prefixed = [server for server, entry in self.config.servers.items() if entry.tools.prefix]
        self.catalogue = MappingProxyType(expose(chosen, prefixed=prefixed))
        self._policy_tools = {
            tool.exposed_name: tool
            for tools in self.catalogue.values()
            for tool in tools
            if tool.audience is Audience.POLICY
        }
        for server, connection in opened.items():
            names = {tool.name for tool in self.catalogue[server] if tool.offer is None}
            self._watch.publish(server, [tool for tool in connection.tools if tool.name in names])

    def _pool(self, opened: Mapping[str, Connection], directory: Path | None) -> None:
        """Turn the first connections into pools, and limit how many sessions may have one at a time."""
        together = tuple(server for server in self._bundled if server in opened)
        for server, connection in opened.items():
            if self.config.servers[server].scope is Scope.SHARED:
                self._shared[server] = SharedConnection(partial(self._open, server), connection)
            elif server not in together:
                self._pools[server] = self._bundle_pool((server,), Bundle({server: connection}))
        if together:
            first = Bundle({server: opened[server] for server in together}, directory)
            self._pools |= dict.fromkeys(together, self._bundle_pool(together, first))
        limits = {pool.name: pool.most for pool in self._pools.values() if pool.most is not None}
        self._places = Places({_SESSIONS: self.config.max_sessions, **limits})

    def _chosen(self, server: str, connection: Connection) -> tuple[ToolDefinition, ...]:
        config, own = self.config.servers[server], {tool.name for tool in connection.tools}
        chosen = select_tools(server, config, connection.tools)
        return chosen + offered_tools(server, config, has=connection.offers, taken=own)

    async def fetch(self, server: str, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """A server's instructions, or a resource or prompt of its, in a lease of its own that resets nothing.

        Args:
            name: One of the names in `gateway.offers`.

        Raises:
            ConfigError: there is no such server.
            GatewayError: no lease was to be had, or the server broke.
        """
        if server not in self.catalogue:
            raise ConfigError(f"no server {server!r}", key="servers", remedy=f"there are: {', '.join(self.catalogue)}")
        tool = made_tool(server, name)
        async with self._lease(uuid4().hex, None, 0, {tool.exposed_name: tool}) as session:
            return await session.call(tool.exposed_name, arguments)

    def _bundle_pool(self, servers: tuple[str, ...], first: Bundle) -> BundlePool:
        entries = [self.config.servers[server] for server in servers]
        for server, entry in zip(servers, entries, strict=True):
            if entry.leases_per_process > 1 and all(tool.role is not Role.RESET for tool in self.catalogue[server]):
                raise ConfigError(
                    "a process that is leased again needs a reset tool, and the server has none",
                    key=f"servers.{server}.leases_per_process",
                    remedy="name one: roles: {reset: TOOL}; or leave it at 1",
                )
        return BundlePool(
            servers,
            open_bundle=partial(self._open_bundle, servers),
            discard=self._discard,
            first=first,
            tasks=self._tasks,
            min_ready=max(entry.min_ready for entry in entries),
            most=min((entry.max_processes for entry in entries if entry.max_processes is not None), default=None),
            leases_each=min(entry.leases_per_process for entry in entries),
        )

    async def _open_bundle(self, servers: tuple[str, ...], bundle: Bundle) -> None:
        if servers[0] in self._bundled:
            bundle.directory = await self._directory()
        errors: list[GatewayError] = []

        async def open_one(server: str) -> None:
            try:
                await self._open(server, bundle.directory, bundle)
            except GatewayError as error:
                errors.append(error)

        async with anyio.create_task_group() as tasks:
            for server in servers:
                tasks.start_soon(open_one, server)
        if errors:
            raise errors[0]

    async def _discard(self, bundle: Bundle) -> None:
        for connection in bundle.connections.values():
            connection.end("its session is over")
        for connection in bundle.connections.values():
            await connection.done.wait()
        if bundle.directory is not None and self._janitor is not None:
            self._janitor.emptied(bundle.directory)

    async def _directory(self) -> Path:
        assert self._janitor is not None
        try:
            return await self._janitor.directory()
        except OSError as error:
            raise ServerUnavailable(f"no directory for a lease: {error}", server=self._bundled[0]) from error

    async def _open(self, server: str, directory: Path | None = None, bundle: Bundle | None = None) -> Connection:
        config = self.config.servers[server]
        if config.kind is not Kind.STDIO or self._janitor is None:
            return await self._open_now(server, config, bundle)
        async with self._starts[server]:
            mark = self._janitor.mark()
            return await self._open_now(server, placed(config, directory, **{OWNER: mark}), bundle, mark)

    async def _open_now(
        self, server: str, config: ServerConfig, bundle: Bundle | None, mark: str | None = None
    ) -> Connection:
        asks, patience_s = requests_answered(self.config)
        longest_s = max(config.start_timeout_s, self.config.reset_timeout_s, self.config.release_timeout_s)
        patience_s += max(0.0, longest_s - config.call_timeout_s)
        era, notice = self._eras[server], self._watch.notice
        connection = Connection(server, config, self._connect, era, notice, asks=asks, patience_s=patience_s)
        self._connections.add(connection)
        if bundle is not None:
            bundle.connections[server] = connection
        self._tasks.start_soon(self._own, connection, mark)
        try:
            await connection.started()
        except BaseException:
            connection.end("it did not start")
            raise
        self._watch.compare(server, connection.tools)
        return connection

    async def _own(self, connection: Connection, mark: str | None) -> None:
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)
            if mark is not None and self._janitor is not None:
                self._janitor.ended(mark)

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
        try:
            await self._tasks.__aexit__(None, None, None)
        finally:
            await self._exits.aclose()

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
            ToolsChanged: a server defines its tools otherwise than when the gateway started.
            GatewayError: a server could not be reached, or refused the reset.
        """
        return self._lease(trajectory, task, seed, self._select(tools))

    @asynccontextmanager
    async def _lease(
        self, trajectory: str, task: str | None, seed: int, tools: Mapping[str, ToolDefinition]
    ) -> AsyncGenerator[Session]:
        # No cancel scope stays open over the yield: the block may be left in another task than entered it.
        asked, needed = anyio.current_time(), self._needed(tools)
        deadline = asked + self.config.lease_timeout_s
        pools = {self._pools[server].name: self._pools[server] for server in needed if server in self._pools}
        places = frozenset({_SESSIONS, *pools})
        with anyio.CancelScope(deadline=deadline) as waiting:
            await self._places.acquire(places)
        if waiting.cancelled_caught:
            raise LeaseTimeout(self._in_use(places))
        bundles: dict[str, Bundle] = {}
        session: Session | None = None
        try:
            self._refuse_changed(needed)
            taken = await self._take(needed, pools, bundles, deadline, reset=task is not None)
            self._refuse_changed(needed)  # a connection that was opened just now may have brought it to light
            session = self._session(trajectory, seed, tools, taken, bundles, anyio.current_time() - asked)
            try:
                if task is not None:
                    await session.reset(task)
                yield session
            finally:
                try:
                    await self._release(session)
                finally:
                    session.end()
        finally:
            for name, bundle in bundles.items():
                pools[name].give_back(bundle, sound=session is not None and session.sound(bundle.connections))
            self._places.release(places)

    def _in_use(self, places: frozenset[str]) -> str:
        full = self._places.full(places)
        if not full or _SESSIONS in full:
            what = f"all {self.config.max_sessions} sessions were"
        else:
            what = " and ".join(f"all processes of {name} (max_processes)" for name in full) + " were"
        return f"{what} in use for {self.config.lease_timeout_s:g} s"

    def _session(
        self,
        trajectory: str,
        seed: int,
        tools: Mapping[str, ToolDefinition],
        taken: Mapping[str, Connection],
        bundles: Mapping[str, Bundle],
        lease_wait_s: float,
    ) -> Session:
        reopen: dict[str, Callable[[], Any]] = {
            server: self._shared[server].take
            for server in taken
            if not keeps_state(self.config.servers[server], self.catalogue[server])
        }
        # Nobody else had a part in what these processes did: what they used up, this trajectory used up.
        alone = frozenset(
            server
            for bundle in bundles.values()
            for server in bundle.connections
            if bundle.leases == 1 and self.config.servers[server].scope is Scope.PROCESS
        )
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
            _changed=self._watch.changed,
            _settle=self._watch.settle,
            _warned=self._warned,
            _sampling=self._sampling,
            lease_dir=next((bundle.directory for bundle in bundles.values() if bundle.directory), None),
            _alone=alone,
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

    def _refuse_changed(self, servers: Collection[str]) -> None:
        for server in servers:
            if server in self._watch.changed:
                raise self._watch.changed[server].again()

    async def _take(
        self,
        needed: Collection[str],
        pools: Mapping[str, BundlePool],
        bundles: dict[str, Bundle],
        deadline: float,
        *,
        reset: bool,
    ) -> dict[str, Connection]:
        """A connection to each server of `needed`; what is taken from `pools` stands in `bundles`, come what may."""
        taken: dict[str, Connection] = {}
        errors: list[GatewayError] = []

        async def take(server: str) -> None:
            try:
                taken[server] = await self._shared[server].take()
            except GatewayError as error:
                errors.append(error)

        async def take_bundle(name: str) -> None:
            try:
                bundles[name] = await pools[name].take(reset=reset)
            except GatewayError as error:
                errors.append(error)

        with anyio.CancelScope(deadline=deadline) as waiting:
            async with anyio.create_task_group() as tasks:
                for server in needed:
                    if server in self._shared:
                        tasks.start_soon(take, server)
                for name in pools:
                    tasks.start_soon(take_bundle, name)
        if errors:
            raise errors[0]
        for bundle in bundles.values():
            taken |= {server: bundle.connections[server] for server in needed if server in bundle.connections}
        if waiting.cancelled_caught:
            missing = ", ".join(server for server in needed if server not in taken)
            raise LeaseTimeout(f"no connection to {missing} within {self.config.lease_timeout_s:g} s")
        return taken

    async def _release(self, session: Session) -> None:
        with anyio.move_on_after(self.config.release_timeout_s, shield=True) as bound:
            try:
                await session.release()
            except GatewayError as error:
                # The trajectory is over and its result stands; what the server failed to tidy up is the server's.
                self._log.warning("lease.release_failed", trajectory=session.trajectory, problem=str(error))
        if bound.cancelled_caught:
            self._log.warning("lease.release_timed_out", trajectory=session.trajectory)


def _hidden_text(connection: Connection) -> tuple[Finding, ...]:
    findings = [found for tool in connection.tools for found in find_hidden_in_tool(tool)]
    return (*findings, *find_hidden(connection.instructions, "instructions"))


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
