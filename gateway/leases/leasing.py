"""Lease servers to trajectories: acquire slots and connections, reset every server, return everything."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import structlog

from mcp_rollout.gateway.config.models import GatewayConfig, ServerConfig
from mcp_rollout.gateway.connection.answerers import sampling_answerer
from mcp_rollout.gateway.connection.connection import AnyConnection
from mcp_rollout.gateway.errors import ConfigError, GatewayError, HarnessError, LeaseTimeout
from mcp_rollout.gateway.leases.opening import Openings
from mcp_rollout.gateway.leases.pool import BundlePool
from mcp_rollout.gateway.leases.remote_pool import RemotePool
from mcp_rollout.gateway.leases.sending import Sending
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.gateway.leases.slots import Slots
from mcp_rollout.gateway.leases.taking import Bundle, Pool, SharedConnection, Wanted, take_all
from mcp_rollout.gateway.types import SEED_META, TRAJECTORY_META, LeaseRequest, Role, Scope, ToolDefinition

_SESSIONS = ""
"""The key of the gateway's own slots; the others are names of pools."""


class Leases:
    """Leases over the connections that are open at the start, and over those that the pools open in their place.

    Args:
        opened: By server.
        directory: The one that the bundled servers among them share.
        remote: Has the worlds of all servers, where they are on hosts.
        log: Bound to the gateway's name.

    Raises:
        ConfigError: a server's processes are to be leased again and nothing makes them fresh.
    """

    def __init__(
        self,
        config: GatewayConfig,
        catalogue: Mapping[str, tuple[ToolDefinition, ...]],
        openings: Openings,
        opened: Mapping[str, AnyConnection],
        directory: Path | None,
        *,
        log: structlog.stdlib.BoundLogger,
        remote: RemotePool | None = None,
    ) -> None:
        self._config, self._catalogue, self._log = config, catalogue, log
        self._openings, self._watch = openings, openings.watch
        self._shared: dict[str, SharedConnection] = {}
        self._remote = remote
        self._pools: dict[str, Pool] = {}
        """By server; servers that share a directory, or a host, share a pool."""
        self._warned: set[str] = set()
        self._named: set[str] = set()
        """Slots that a session had to wait for."""
        self._sampling = sampling_answerer(config)
        self._pool(opened, directory)

    def close(self) -> None:
        """The gateway is closing: start nothing more."""
        for pool in self._pools.values():
            pool.close()

    def _pool(self, opened: Mapping[str, AnyConnection], directory: Path | None) -> None:
        """Turn the first connections into pools, and limit how many sessions may have one at a time."""
        together = tuple(server for server in self._openings.bundled if server in opened)
        for server, connection in opened.items():
            if self._config.servers[server].scope is Scope.SHARED:
                self._shared[server] = SharedConnection(partial(self._openings.open, server), connection)
            elif server not in together:
                self._pools[server] = self._bundle_pool((server,), Bundle({server: connection}))
        if together:
            first = Bundle({server: opened[server] for server in together}, directory)
            self._pools |= dict.fromkeys(together, self._bundle_pool(together, first))
        elif directory is not None:  # none of its servers has started
            self._openings.tasks.start_soon(self._openings.discard, Bundle(directory=directory))
        if self._remote is not None:
            self._pools |= dict.fromkeys(self._remote.servers, self._remote)
        limits = {pool.name: pool.most for pool in self._pools.values() if pool.most is not None}
        self._slots = Slots({_SESSIONS: self._config.max_sessions, **limits}, common=_SESSIONS)

    def _bundle_pool(self, servers: tuple[str, ...], first: Bundle) -> BundlePool:
        entries = [self._config.servers[server] for server in servers]
        for server, entry in zip(servers, entries, strict=True):
            if entry.leases_per_process > 1 and all(tool.role is not Role.RESET for tool in self._catalogue[server]):
                raise ConfigError(
                    "a process that is leased again needs a reset tool, and the server has none",
                    key=f"servers.{server}.leases_per_process",
                    remedy="name one: roles: {reset: TOOL}; or leave it at 1",
                )
        return BundlePool(
            servers,
            open_bundle=partial(self._openings.open_bundle, servers),
            discard=self._openings.discard,
            first=first,
            tasks=self._openings.tasks,
            rehearse=self._rehearse,
            min_ready=max(entry.min_ready for entry in entries),
            most=min((entry.max_processes for entry in entries if entry.max_processes is not None), default=None),
            leases_each=min(entry.leases_per_process for entry in entries),
        )

    async def _rehearse(self, bundle: Bundle) -> None:
        """Reset and release the servers of an idle bundle whose reset tool declares a rehearsal (`REHEARSAL_META`).

        Their processes then have run that code and copied that memory: a fork copies each page that it first writes to,
        which takes more than half of a first reset; a spawned process also compiles and builds what libraries put off.
        The lease of a ready fork of `mcp_servers.retail` takes 12 ms so, and 24 without, on a busy machine.

        Raises:
            GatewayError: a server broke.
        """
        request = LeaseRequest(trajectory=f"rehearsal-{uuid4().hex}", task=None, seed=0, tools={})
        sender = self._sender(Sending, request, bundle.connections, {})
        session = self._session(request, sender, {}, anyio.current_time())
        for reset in (each for server in bundle.connections for each in self._catalogue[server]):
            if reset.role is not Role.RESET or reset.rehearsal is None:
                continue
            try:
                await session.invoke(Role.RESET, reset.rehearsal, server=reset.server)
                if session.has(Role.RELEASE, reset.server):
                    await session.invoke(Role.RELEASE, {}, server=reset.server)
            except HarnessError as error:
                if not error.refused:
                    raise
                # A refused reset has made no world: the process is as fit for a lease as before.
                self._log.warning("rehearsal.refused", server=reset.server, problem=str(error))

    @asynccontextmanager
    async def lease(
        self, request: LeaseRequest, *, sending: Callable[..., Sending] = Sending
    ) -> AsyncGenerator[Session]:
        """As `Gateway.lease`; `sending` makes the session's."""
        # No cancel scope stays open across the yield: another task than the one that entered may leave the block.
        began_at, needed = anyio.current_time(), self._needed(request.tools)
        deadline = began_at + self._config.lease_timeout_s
        pools = {self._pools[server].name: self._pools[server] for server in needed if server in self._pools}
        slots = frozenset({_SESSIONS, *pools})
        self._name_limits(slots)
        if not self._slots.acquire_now(slots):
            with anyio.CancelScope(deadline=deadline) as waiting:
                # A wait that is cut here has taken no slot, so there is nothing to give back.
                await self._slots.acquire(slots)
            if waiting.cancelled_caught:
                raise LeaseTimeout(self._in_use(slots))
        # From here on slots are held: all that can raise is inside the `try`.
        bundles: dict[str, Bundle] = {}
        session: Session | None = None
        try:
            self._refuse_changed(needed)
            reset = request.task is not None or request.resets
            world = Wanted(request.trajectory, request.seed, reset, deadline, self._config.lease_timeout_s)
            taken = await take_all(needed, self._shared, pools, bundles, world)
            self._refuse_changed(needed)  # a connection opened just now may have revealed it
            sender = self._sender(sending, request, taken, bundles)
            session = self._session(request, sender, bundles, began_at)
            try:
                if request.task is not None:
                    await session.reset(request.task)
                yield session
            finally:
                try:
                    # A release sends calls, so it comes before `end`; `end` comes before the bundle is given back, so
                    # that a task that outlives the block cannot call into the next trajectory's world.
                    await self._release(session)
                finally:
                    session.end()
        finally:
            # No `await` from here on: cancellation cannot leave a bundle or a slot behind.
            for name, bundle in bundles.items():
                pools[name].give_back(bundle, healthy=session is not None and session.healthy(bundle.connections))
            self._slots.release(slots)

    def _name_limits(self, slots: frozenset[str]) -> None:
        """Log each limit the first time that a session waits for it: a default may be what makes a run slow."""
        for name in self._slots.full(slots):
            if name not in self._named:
                self._named.add(name)
                limit = "max_sessions" if name == _SESSIONS else f"servers.{name}.max_processes"
                most, remedy = self._slots.limits[name], "raise it if the machine has room for more"
                self._log.warning("lease.waiting", limit=limit, most=most, remedy=remedy)

    def _in_use(self, slots: frozenset[str]) -> str:
        full = self._slots.full(slots)
        if not full or _SESSIONS in full:
            what = f"all {self._config.max_sessions} sessions were"
        else:
            what = " and ".join(f"all processes of {name} (max_processes)" for name in full) + " were"
        return f"{what} in use for {self._config.lease_timeout_s:g} s"

    def _sender(
        self,
        sending: Callable[..., Sending],
        request: LeaseRequest,
        taken: Mapping[str, AnyConnection],
        bundles: Mapping[str, Bundle],
    ) -> Sending:
        reopen: dict[str, Callable[[], Any]] = {
            server: self._shared[server].take
            for server in taken
            if server in self._shared and not _keeps_state(self._config.servers[server], self._catalogue[server])
        }
        # These processes served no other trajectory: what is done to them, this one does. Of a remote world its host
        # knows, and its errors say so.
        exclusive = frozenset(
            server
            for bundle in bundles.values()
            for server in bundle.connections
            if bundle.leases == 1 and self._config.servers[server].has_processes_of_its_own and self._remote is None
        )
        return sending(
            trajectory=request.trajectory,
            connections=dict(taken),
            reopen=reopen,
            changed=self._watch.changed,
            meta={TRAJECTORY_META: request.trajectory, SEED_META: request.seed},
            exclusive=exclusive,
        )

    def _session(
        self, request: LeaseRequest, sending: Sending, bundles: Mapping[str, Bundle], began_at: float
    ) -> Session:
        taken = sending.connections
        harness = {
            (tool.role, server): tool for server in taken for tool in self._catalogue[server] if tool.role is not None
        }
        return Session(
            trajectory=request.trajectory,
            seed=request.seed,
            tools=request.shown_tools,
            later_tools=request.hidden_tools,
            lease_wait_s=anyio.current_time() - began_at,
            lease_dir=next((bundle.directory for bundle in bundles.values() if bundle.directory), None),
            _config=self._config,
            _harness=harness,
            _sending=sending,
            _wait_for_changes=self._wait_for_changes,
            _warned=self._warned,
            _sampling=self._sampling,
        )

    def _needed(self, tools: Mapping[str, ToolDefinition]) -> list[str]:
        """Servers with a tool that the policy may use, or with a part in the harness; all for MCP clients."""
        # A client may also ask for resources and prompts.
        used = self._catalogue.keys() if self._openings.relays else {tool.server for tool in tools.values()}
        return [
            server
            for server, definitions in self._catalogue.items()
            if server in used or any(tool.role is not None for tool in definitions)
        ]

    def _refuse_changed(self, servers: Collection[str]) -> None:
        for server in servers:
            if server in self._watch.changed:
                raise self._watch.changed[server].again()

    async def _wait_for_changes(self, connections: Collection[AnyConnection]) -> None:
        await self._watch.wait(connections)
        if self._remote is not None:
            await self._remote.check(connections)

    async def _release(self, session: Session) -> None:
        # Shielded: a cancelled trajectory still frees its state on shared servers. Bounded: a hung server frees its
        # slots.
        with anyio.move_on_after(self._config.release_timeout_s, shield=True) as bound:
            try:
                await session.release()
            except GatewayError as error:
                # The trajectory is over and its result is valid, whatever the server failed to clean up.
                self._log.warning("lease.release_failed", trajectory=session.trajectory, problem=str(error))
        if bound.cancelled_caught:
            self._log.warning("lease.release_timed_out", trajectory=session.trajectory)


def _keeps_state(config: ServerConfig, tools: tuple[ToolDefinition, ...]) -> bool:
    """Whether state of a trajectory may be lost with a server's connection.

    Not where the server is shared, has no part in the trajectory's harness, and all its tools only read. A server
    behind a URL outlives a connection to it, so its tools may also write.
    """
    in_harness = any(tool.role not in (None, Role.TASKS, Role.EXPERT) for tool in tools)
    own_process = config.url is None
    writes = any(not tool.read_only for tool in tools if tool.role is None)
    return config.scope is not Scope.SHARED or in_harness or (own_process and writes)
