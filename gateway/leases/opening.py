"""Open a gateway's connections, each with its owner task, and with a directory and a process mark where needed."""

from __future__ import annotations

import os
import resource
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import structlog

from mcp_rollout.gateway.config.models import GatewayConfig, Kind, ServerConfig, Start
from mcp_rollout.gateway.connection.answerers import requests_answered
from mcp_rollout.gateway.connection.connection import Connection
from mcp_rollout.gateway.connection.redaction import Redactor, entry_texts
from mcp_rollout.gateway.errors import GatewayError, ServerUnavailable
from mcp_rollout.gateway.leases.janitor import LEASE_DIR, OWNER, Janitor, bundled, placed
from mcp_rollout.gateway.leases.taking import Bundle
from mcp_rollout.gateway.leases.watch import ToolWatch
from mcp_rollout.gateway.transport.forks import Forks
from mcp_rollout.gateway.transport.http_connection import HttpConnections
from mcp_rollout.gateway.transport.negotiated import Connect, NegotiatedProtocol
from mcp_rollout.gateway.transport.target import open_target
from mcp_rollout.gateway.types import Scope

log = structlog.get_logger(__name__)

_MOST_DESCRIPTORS = 1 << 16
_OTHER_DESCRIPTORS = 128
"""What a process needs besides HTTP posts: its own files, pipes to servers, event streams."""
_PROCESS_DESCRIPTORS = 4
"""What a process of a server takes: its pipes, and the connection to its fork server."""
_CLOSING_SPARE_S = 5.0
"""Beyond the longest `close_timeout_s`: what killing and reaping may take."""


class Openings:
    """Entered and left by one task; what it opens lives in separate tasks until it is left.

    Args:
        connect: As `Gateway`.
        relay_mode: mcp's mode of connections that forward requests of MCP clients; None for others.

    Raises, on entry:
        ConfigError: directories of leases cannot be made, or are asked for where they cannot be.
    """

    def __init__(self, config: GatewayConfig, connect: Connect | None = None, *, relay_mode: str | None = None) -> None:
        self._config, self._connect, self.relays = config, connect, relay_mode is not None
        modes = {None: relay_mode or "auto", "handshake": "legacy", "modern": "auto"}
        self.protocols = {
            server: NegotiatedProtocol(mode=modes[entry.era], first=modes[entry.era])
            for server, entry in config.servers.items()
        }
        self._redactors = {server: Redactor(entry) for server, entry in config.servers.items()}
        for server, entry in config.servers.items():
            if entry.secrets is None and (places := entry_texts(entry).unnamed()):
                remedy = "name it under secrets; `secrets: []` says that there is none"
                log.warning("server.secret_unnamed", server=server, places=places, remedy=remedy)
        self.connections: set[Connection] = set()
        """All that have not ended."""
        self.http: HttpConnections
        """Carries calls over HTTP; there from entry on."""
        self.forks: dict[str, Forks] = {}
        """By server, where its processes are forked."""
        self._janitor: Janitor | None = None
        self._exits = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.bundled = bundled(self._config)
        """The servers that share a directory for each lease."""
        self._closing = False
        # A start is mostly the child's CPU time: more at once only makes all of them miss their timeout. Per server,
        # since one whose starts hang would otherwise block the starts of all others.
        most = max(2, os.cpu_count() or 2)
        self._starts = {server: anyio.CapacityLimiter(most) for server in self._config.servers}
        self.http = HttpConnections(http_posts_at_once())
        _warn_of_few_descriptors(self._config)
        self._exits.callback(self.http.close)
        if any(entry.kind is Kind.STDIO for entry in self._config.servers.values()):
            directories = self._config.lease_dir if self.bundled else None
            self._janitor = await self._exits.enter_async_context(Janitor(directories))
            self.forks = {
                server: Forks(server, entry, mark=(OWNER, self._janitor.mark()), placeholder=LEASE_DIR)
                for server, entry in self._config.servers.items()
                if entry.start is Start.FORK and entry.kind is Kind.STDIO
            }
            for forks in self.forks.values():
                self._exits.push_async_callback(forks.aclose)
        # Entered by hand: the group outlives this method, and `__aexit__` of the same task leaves it. Entered last, so
        # that nothing after it can fail and leave it open.
        self.tasks = await anyio.create_task_group().__aenter__()
        self.watch = ToolWatch(self.tasks, lambda server, text: self._redactors[server].text(text))
        self.tasks.start_soon(self.watch.run)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # What opens one more is a call or a lease that outlives the gateway's block; it would never be closed.
        self._closing = True
        longest = max((config.close_timeout_s for config in self._config.servers.values()), default=0.0)
        # Shielded: a cancelled owner still closes its servers in order (stdin, SIGTERM, SIGKILL). All connections are
        # asked to end before the first is waited for, so that their closing times overlap.
        with anyio.move_on_after(longest + _CLOSING_SPARE_S, shield=True):
            for connection in list(self.connections):
                connection.end("the gateway is closing")
            for connection in list(self.connections):
                await connection.done.wait()
        # What is left: the watch, and owner tasks that took longer than the bound.
        self.tasks.cancel_scope.cancel()
        try:
            await self.tasks.__aexit__(None, None, None)
        finally:
            await self._exits.aclose()

    async def open_bundle(self, servers: tuple[str, ...], bundle: Bundle) -> None:
        """Open connections to all of these, entered into `bundle` as they are begun. Raises what `open` raises."""
        if servers[0] in self.bundled:
            bundle.directory = await self.directory()
        errors: list[GatewayError] = []

        async def open_one(server: str) -> None:
            try:
                await self.open(server, bundle.directory, bundle)
            except GatewayError as error:
                errors.append(error)

        async with anyio.create_task_group() as tasks:
            for server in servers:
                tasks.start_soon(open_one, server)
        if errors:
            raise errors[0]

    async def discard(self, bundle: Bundle) -> None:
        """End what is in a bundle; returns when nothing of it is left."""
        for connection in bundle.connections.values():
            connection.end("its session is over")
        for connection in bundle.connections.values():
            await connection.done.wait()
        if bundle.directory is not None and self._janitor is not None:
            self._janitor.emptied(bundle.directory)

    async def directory(self) -> Path:
        """A fresh directory for a lease. Raises `ServerUnavailable`."""
        assert self._janitor is not None
        try:
            return await self._janitor.directory()
        except OSError as error:
            raise ServerUnavailable(f"no directory for a lease: {error}", server=self.bundled[0]) from error

    async def open(self, server: str, directory: Path | None = None, bundle: Bundle | None = None) -> Connection:
        """A connection, once calls can be sent. Raises what `Connection.started` raises."""
        config = self._config.servers[server]
        if config.kind is not Kind.STDIO or self._janitor is None:
            return await self._open_now(server, config, bundle)
        async with self._starts[server]:
            mark = self._janitor.mark()
            return await self._open_now(server, placed(config, directory, **{OWNER: mark}), bundle, mark)

    async def _open_now(
        self, server: str, config: ServerConfig, bundle: Bundle | None, mark: str | None = None
    ) -> Connection:
        if self._closing:
            raise ServerUnavailable("the gateway is closing", server=server)
        answered, _ = requests_answered(self._config)
        protocol = self.protocols[server]
        target = partial(
            open_target,
            server,
            config,
            connect=self._connect,
            connections=self.http,
            forks=self.forks.get(server),
        )
        connection = Connection(
            server,
            config,
            target,
            protocol,
            self._redactors[server],
            on_tools_changed=self.watch.notice,
            answered=answered,
            relays=self.relays,
        )
        self.connections.add(connection)
        # Before the start, so that discarding the bundle also ends a connection that is still starting.
        if bundle is not None:
            bundle.connections[server] = connection
        # A task of the gateway's group, not of the caller: mcp's cancel scopes must be left by the task that entered
        # them, and the connection outlives the lease that opened it.
        self.tasks.start_soon(self._own, connection, mark)
        try:
            await connection.started()
            await self.watch.compare(server, connection.tools)
        except BaseException:  # cleanup, also when cancelled: the owner task does not end with its caller
            connection.end("it did not start")
            raise
        return connection

    async def _own(self, connection: Connection, mark: str | None) -> None:
        try:
            await connection.run()
        finally:
            self.connections.discard(connection)
            if mark is not None and self._janitor is not None:
                self._janitor.ended(mark)


def http_posts_at_once() -> int:
    """How many HTTP posts of a gateway in this process are under way at a time, so that further ones queue instead of
    failing. Raises the soft limit of open files as far as allowed."""
    # As many connections may be idle.
    return max(4, (_raise_descriptor_limit() - _OTHER_DESCRIPTORS) // 2)


def _raise_descriptor_limit() -> int:
    """Raise this process's soft limit of open files as far as allowed; return the limit.

    The usual soft limit, 1,024, dates from `select`; each world takes several descriptors.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def _warn_of_few_descriptors(config: GatewayConfig) -> None:
    most = config.max_sessions
    apart = [each for each in config.servers.values() if each.kind is Kind.STDIO and each.scope is Scope.PROCESS]
    needed = _OTHER_DESCRIPTORS + _PROCESS_DESCRIPTORS * sum(min(most, each.max_processes or most) for each in apart)
    if any(entry.url is not None for entry in config.servers.values()):
        needed += 2 * most
    if (limit := _raise_descriptor_limit()) < needed:
        remedy = f"raise the limit to {needed} (ulimit -Hn, LimitNOFILE of a service), or lower max_sessions"
        log.warning("gateway.few_descriptors", open_files=limit, needed=needed, remedy=remedy)
