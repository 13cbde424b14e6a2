"""The leases of a served gateway: opened, renewed by use, freed when their client closes them or vanishes."""

from __future__ import annotations

import secrets
from functools import cached_property
from typing import Any
from uuid import uuid4

import anyio
import structlog
from anyio.abc import TaskGroup

from mcp_rollout.gateway.catalogue.names import policy_tools
from mcp_rollout.gateway.errors import ConfigError, GatewayError, ServerUnavailable, WorldLost
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.gateway.serve.bearers import Bearer, Refused
from mcp_rollout.gateway.serve.client_gateways import ClientGateway, ServedGateway
from mcp_rollout.gateway.serve.config import ServeConfig
from mcp_rollout.gateway.serve.params import Params
from mcp_rollout.gateway.serve.served_lease import LeasedCalls, ServedLease

log = structlog.get_logger(__name__)

PATH = "/mcp"
"""The endpoint; below it are the addresses of worlds."""
_LEASED = "~"
"""Begins the addresses of leases. No client's world begins at one, also when its lease is over."""
_NO_LEASE = "no such lease here: it was freed, or this server was started again since"
_SWEEPS = 4
"""Looks for idle leases within an idle bound."""
_THINKS = 10
"""How many times the idle bound an MCP client's world may be silent."""


class ServedLeases:
    """All leases of one server, by handle; the gateway's own lease is what each of them holds."""

    def __init__(self, gateway: ServedGateway, config: ServeConfig, tasks: TaskGroup) -> None:
        self._gateway, self._config, self._tasks = gateway, config, tasks
        self._leases: dict[str, ServedLease] = {}
        self._opened: dict[tuple[Bearer, str], ServedLease] = {}
        """By the key of the request that opened it, which its client may repeat."""
        self._trajectories: set[str] = set()
        self._at: dict[tuple[Bearer, str], ServedLease] = {}
        """By address, which is each bearer's own."""
        self.process = uuid4().hex
        """Of this start."""
        self.draining = False
        self.freed = 0
        """Leases whose client has vanished, since the start."""
        self.granted = 0
        """Since the start."""

    def __len__(self) -> int:
        return len(self._leases)

    def find(self, handle: object, bearer: Bearer) -> ServedLease:
        """A lease of this bearer, and no MCP client's world, which this request renews.

        Raises:
            WorldLost: there is none by this handle, or it is another bearer's; the two cannot be told apart.
        """
        lease = self._leases.get(handle) if isinstance(handle, str) else None
        if lease is None or lease.bearer is not bearer or lease.is_clients or lease.over.is_set():
            raise WorldLost(_NO_LEASE)
        lease.used()
        return lease

    def at(self, address: str, bearer: Bearer) -> ServedLease | None:
        """The world at an address of this bearer, which this request renews; None if one is to begin.

        Raises:
            WorldLost: the address was a lease's, which is over, or another bearer's.
        """
        lease = self._at.get((bearer, address))
        if lease is not None:
            lease.used()
        elif address.startswith(_LEASED):
            raise WorldLost(_NO_LEASE)
        return lease

    async def open(self, params: Params, bearer: Bearer) -> dict[str, Any]:
        """Lease a world, or wait on for one that the same key asked for before.

        Raises:
            GatewayError: what the gateway's lease raised.
            Refused: there are too many already, or the server is draining.
        """
        key, wait_s = params.text("key"), params.number("wait_s", least=0.0, most=self._config.idle_s)
        lease = self._opened.get((bearer, key))
        if lease is None:
            lease = self._begin(params, key, bearer)
        lease.used_at = anyio.current_time()
        # The sweep must not free what a client is waiting for.
        lease.requests += 1
        try:
            with anyio.move_on_after(wait_s):
                # When the request's time is over, the lease itself goes on waiting: the next request finds it.
                await lease.settled.wait()
        finally:
            lease.requests -= 1
            lease.used_at = anyio.current_time()
        if lease.error is not None:
            raise lease.error
        session = lease.session
        directory = str(session.lease_dir) if session is not None and session.lease_dir is not None else None
        address = None if lease.address is None else f"{PATH}/{lease.address}"
        granted = {"lease": lease.handle, "granted": session is not None, "process": self.process}
        return {**granted, "directory": directory, "address": address}

    def _begin(self, params: Params, key: str, bearer: Bearer) -> ServedLease:
        self._check_room(bearer)
        trajectory, seed, reset = params.text("trajectory"), params.integer("seed"), params.flag("reset")
        if len(self._config.tokens) > 1:  # some servers keep what ended trajectories left: no bearer gets another's
            trajectory += f"@{bearer.digest}"
        if trajectory in self._trajectories:  # servers keep worlds apart by it
            raise ServerUnavailable("the trajectory has a lease here already")
        tools = self._tools(params.texts("servers"))
        has_address = params.flag("address") if params.has("address") else True
        address = f"{_LEASED}{secrets.token_urlsafe(24)}" if has_address else None
        calls = LeasedCalls(bearer)
        lease = ServedLease(
            key, trajectory, calls, bearer=bearer, client=self._offered, address=address, is_clients=False
        )
        # Before its task begins, so that a repeated request finds it.
        self._add(lease)
        self._tasks.start_soon(self._hold, lease, None, seed, tools, reset)
        return lease

    def begin_for_client(self, bearer: Bearer, client: ClientGateway, address: str | None) -> ServedLease:
        """A world of an MCP client; it begins to wait for its place.

        Args:
            client: Has the worlds of MCP clients.
            address: Of the world; None for a session's own.

        Raises:
            Refused: as `open`.
        """
        self._check_room(bearer)
        name, calls = f"client-{uuid4().hex}", LeasedCalls(bearer)
        lease = ServedLease("", name, calls, bearer=bearer, client=client, address=address, is_clients=True)
        self._add(lease)
        tools = [tool.exposed_name for tool in policy_tools(client.gateway.catalogue)]
        self._tasks.start_soon(self._hold, lease, self._config.task, self._config.seed, tools, False)
        return lease

    async def session_of(self, lease: ServedLease) -> Session:
        """The session of a lease, once it is granted. Raises `GatewayError`."""
        await lease.settled.wait()
        if lease.error is not None:
            raise lease.error
        if lease.session is None:
            raise ServerUnavailable("the lease has ended")
        return lease.session

    def _check_room(self, bearer: Bearer) -> None:
        if self.draining:
            raise Refused(503, "this server is draining: it leases nothing more")
        if bearer.waiting >= bearer.limits.waiting:
            raise Refused(429, f"{bearer.waiting} leases wait already (limits.waiting)")

    def _add(self, lease: ServedLease) -> None:
        self._leases[lease.handle] = self._opened[lease.bearer, lease.key] = lease
        self._trajectories.add(lease.trajectory)
        if lease.address is not None:
            self._at[lease.bearer, lease.address] = lease

    @cached_property
    def _offered(self) -> ClientGateway:
        """What a trainer's lease is to MCP clients at its address: the tools of the policy."""
        return ClientGateway.of_tools(self._gateway)

    def _tools(self, servers: list[str] | None) -> list[str]:
        """Exposed names of the policy's tools of these servers of the gateway's; all of them for None."""
        if servers is not None and (unknown := [name for name in servers if name not in self._gateway.catalogue]):
            raise ServerUnavailable(f"no server {unknown[0]!r} here")
        tools = policy_tools(self._gateway.catalogue)
        return [tool.exposed_name for tool in tools if servers is None or tool.server in servers]

    async def _hold(self, lease: ServedLease, task: str | None, seed: int, tools: list[str], reset: bool) -> None:
        bearer = lease.bearer
        bearer.waiting += 1
        waits = True
        try:
            with lease.scope:
                # Before the gateway's own slots: a bearer at its limit takes none of them while it waits.
                async with bearer.worlds if lease.is_clients else bearer.leases:
                    leasing = lease.client.gateway.lease(
                        trajectory=lease.trajectory, task=task, seed=seed, tools=tools, resets=reset
                    )
                    async with leasing as session:
                        lease.session, lease.tools = session, session.all_tools
                        bearer.waiting -= 1
                        waits = False
                        self.granted += 1
                        lease.settled.set()
                        await lease.over.wait()
                        # Before the servers are released: a cancelled call goes on
                        # for seconds, until its server has been told.
                        await lease.calls.closed()
        except GatewayError as error:
            lease.error = error
        except ConfigError as error:  # a row's, not this server's
            lease.error = ServerUnavailable(str(error))
        finally:
            # No `await` below: this runs when the server's tasks are cancelled, too, and `end_all` waits for `done`.
            bearer.waiting -= waits
            lease.over.set()
            self._forget(lease)
            lease.settled.set()
            lease.done.set()

    def _forget(self, lease: ServedLease) -> None:
        del self._leases[lease.handle], self._opened[lease.bearer, lease.key]
        self._trajectories.discard(lease.trajectory)
        self._leave_address(lease)
        lease.calls.forget()

    def _leave_address(self, lease: ServedLease) -> None:
        place = lease.bearer, lease.address or ""
        if self._at.get(place) is lease:
            del self._at[place]

    def end(self, lease: ServedLease) -> None:
        """End a lease, and return at once; another world may begin at its address."""
        self._leave_address(lease)
        lease.end()

    async def close(self, handle: object, bearer: Bearer) -> None:
        """End a lease; returns when its world is released. One that is gone is closed already."""
        try:
            lease = self.find(handle, bearer)
        except WorldLost:
            return
        self.end(lease)
        await lease.done.wait()

    async def close_at(self, address: str, bearer: Bearer) -> None:
        """End an MCP client's world; returns when it is released."""
        lease = self._at.get((bearer, address))
        if lease is not None and lease.is_clients:
            self.end(lease)
            await lease.done.wait()

    def renew(self, handles: list[str], bearer: Bearer) -> list[str]:
        """Renew leases; returns those that are gone."""
        lost: list[str] = []
        for handle in handles:
            try:
                self.find(handle, bearer)
            except WorldLost:
                lost.append(handle)
        return lost

    async def sweep(self) -> None:
        """Free the leases whose clients have vanished, until cancelled."""
        while True:
            await anyio.sleep(self._config.idle_s / _SWEEPS)
            for lease in list(self._leases.values()):
                # MCP clients renew nothing while their model thinks. Where their bearer needs the place, it is freed.
                thinks = lease.is_clients and not lease.bearer.waiting
                idle_s = self._config.idle_s * (_THINKS if thinks else 1)
                # Its time begins when its last request ends: a call may take longer than `idle_s`.
                silent = lease.used_at < anyio.current_time() - idle_s and not lease.requests and not lease.sessions
                if silent and not lease.over.is_set():
                    log.warning("lease.freed", trajectory=lease.trajectory, idle_s=idle_s)
                    self.freed += 1
                    self.end(lease)

    async def drained(self) -> None:
        """Lease nothing more, and wait until no lease is left, for at most `drain_s`; then end them."""
        self.draining = True
        for lease in list(self._leases.values()):
            self.end_if_unused(lease)
        with anyio.move_on_after(self._config.drain_s):
            # Nothing is added while it drains, so this takes as many steps as there are leases.
            while self._leases:
                await next(iter(self._leases.values())).done.wait()
        await self.end_all()

    def end_if_unused(self, lease: ServedLease) -> None:
        """End an MCP client's world whose clients have left before it had its place.

        While draining, also one without a request under way: it does not say that it goes on.
        """
        left = lease.session is None and not lease.requests and not lease.sessions
        if lease.is_clients and (left or (self.draining and (not lease.requests or lease.session is None))):
            self.end(lease)

    def end_if_broken(self, lease: ServedLease) -> None:
        """End an MCP client's world whose state is gone with its server's process: its address gets another."""
        session = lease.session
        if lease.is_clients and lease.address is not None and session is not None and session.sending.broken:
            self.end(lease)

    async def end_all(self) -> None:
        """End every lease; returns when all worlds are released."""
        self.draining = True
        for lease in list(self._leases.values()):
            self.end(lease)
        for lease in list(self._leases.values()):
            await lease.done.wait()
