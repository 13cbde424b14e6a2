"""Worlds on hosts as pools: each bundle is a lease of one host, with all of the pool's servers in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path
from uuid import uuid4

import anyio
import structlog
from anyio.abc import TaskGroup

from mcp_rollout.gateway.config.models import GatewayConfig
from mcp_rollout.gateway.connection.connection import AnyConnection
from mcp_rollout.gateway.errors import ConfigError, HostRefused, ServerUnavailable, WorldLost
from mcp_rollout.gateway.leases.taking import Bundle, SharedAttempt
from mcp_rollout.gateway.remote.host import RemoteHost
from mcp_rollout.gateway.remote.hosts import HostConfig, Hosts
from mcp_rollout.gateway.remote.names import Offer
from mcp_rollout.gateway.remote.outcome import HostError
from mcp_rollout.gateway.remote.world import RemoteConnection, RemoteWorld
from mcp_rollout.gateway.transport.http_connection import HttpConnections
from mcp_rollout.gateway.types import ToolDefinition

log = structlog.get_logger(__name__)

_OFTEN_S = 0.02
"""Least time between two renewals, whatever a host asks for."""


class RemotePool:
    """Leases worlds of the hosts that `hosts` names.

    Args:
        config: Its servers are those that the hosts serve, by the same names.
        tasks: Outlives every lease.
    """

    name, most = "hosts", None
    """The hosts bound what they hold."""

    def __init__(
        self,
        config: GatewayConfig,
        hosts: Hosts,
        connections: HttpConnections,
        tasks: TaskGroup,
    ) -> None:
        self.servers = tuple(config.servers)
        self._config, self._hosts = config, hosts
        self._connections, self._tasks = connections, tasks
        self._known: dict[str, RemoteHost] = {}
        """By address."""
        self._connecting = defaultdict[str, SharedAttempt](SharedAttempt)
        self._catalogue: Mapping[str, tuple[ToolDefinition, ...]] = {}
        self._held: dict[RemoteWorld, HostConfig] = {}
        self._closing = False

    async def start(self) -> Offer:
        """What the hosts offer, as the first of them says.

        Raises:
            WorldLost: it cannot be reached.
            HostRefused: it does not admit us, or does not serve worlds.
            ConfigError: a server of the configuration is not among those that it serves.
        """
        config: HostConfig | None = None
        with anyio.move_on_after(self._config.lease_timeout_s):
            config = await self._hosts.take()
        if config is None:
            raise WorldLost(f"no host within {self._config.lease_timeout_s:g} s")
        lost = True
        try:
            host = await self._host(config)
            lost = False
        finally:
            self._hosts.give_back(config, lost=lost)
        for server in self.servers:
            if server not in host.offer.servers:
                remedy = f"it serves: {host.redactor.text(', '.join(host.offer.servers)) or 'none'}"
                raise ConfigError(f"{config.url} has no server {server!r}", key=f"servers.{server}", remedy=remedy)
        return host.offer

    def take_ready(self, *, reset: bool) -> Bundle | None:
        """None: a world is a lease of its host, which takes a request."""
        return None

    async def take(self, *, reset: bool, trajectory: str = "", seed: int = 0) -> Bundle:
        """As `Pool.take`: a world on the host that `hosts` chooses."""
        # One for all attempts: a host that was out of reach may still keep the place of the last one.
        key = uuid4().hex
        while True:
            config = await self._hosts.take()
            try:
                if self._closing:
                    raise ServerUnavailable("the gateway is closing")
                return await self._opened(config, key=key, reset=reset, trajectory=trajectory, seed=seed)
            except WorldLost as error:  # nothing was executed yet: the next host may have a place
                log.warning("host.lost", host=config.url, problem=str(error))
                self._forget(config)
                self._hosts.give_back(config, lost=True)
            except BaseException:  # cleanup, also when cancelled: the place is free again
                self._hosts.give_back(config, lost=False)
                raise

    async def _opened(self, config: HostConfig, *, key: str, reset: bool, trajectory: str, seed: int) -> Bundle:
        host = await self._host(config)
        try:
            servers = [*self.servers]
            found = await host.open(key=key, trajectory=trajectory, seed=seed, servers=servers, reset=reset)
        except HostError as error:
            raise error.decoded() from error
        world = RemoteWorld(host, found.lease, self._config)
        if self._closing:  # while the host granted it: the tasks that give worlds back have ended, or will
            await world.close()
            raise ServerUnavailable("the gateway is closing")
        # No `await` since the host leased it: from here on `_own` gives it back, whatever becomes of the caller.
        self._held[world] = config
        self._tasks.start_soon(self._own, world)
        return Bundle(
            connections=world.connections,
            directory=Path(host.redactor.text(found.directory)) if found.directory else None,
            leases=1,
        )

    async def _own(self, world: RemoteWorld) -> None:
        """Close a world when its session is over; until then the host's renewals keep it."""
        try:
            await world.over.wait()
            await world.close()
        finally:
            world.done.set()  # also when cancelled: `aclose` waits for it
        config = self._held.pop(world)
        if world.lost:
            self._forget(config)
        self._hosts.give_back(config, lost=bool(world.lost))

    def give_back(self, bundle: Bundle, *, healthy: bool) -> None:
        """Give a world back to its host; return at once."""
        for connection in bundle.connections.values():
            connection.end("its session is over")

    async def check(self, connections: Collection[AnyConnection]) -> None:
        """Raise `ToolsChanged` where the tools of a server of this pool, among these, have changed."""
        found = {each.world for each in connections if isinstance(each, RemoteConnection)}
        for world in found & self._held.keys():
            await world.check()

    def close(self) -> None:
        """The gateway is closing: start nothing more."""
        self._closing = True

    async def aclose(self) -> None:
        """Close every world, and return when the hosts know. Bounded by each world's `close`."""
        for world in list(self._held):
            world.over.set()
        for world in list(self._held):
            await world.done.wait()

    async def _host(self, config: HostConfig) -> RemoteHost:
        """A host that offers what the first one offered. Raises as `RemoteHost.connect`."""
        # Sessions that meet at a new host wait for one connection to it.
        async with self._connecting[config.url].alone():
            host = self._known.get(config.url)
            if host is not None and host.config == config:
                return host
            host = RemoteHost(config, self._connections)
            try:
                await host.connect()
            except HostError as error:
                raise error.decoded() from error
            offered = {server: found.tools for server, found in host.offer.servers.items()}
            if self._catalogue and offered != self._catalogue:
                raise HostRefused(f"{config.url} serves other tools than the first host: start all with the same file")
            # That of the first host holds for all: the policy's tools are the same wherever a trajectory is played.
            self._catalogue = offered
            self._forget(config)  # one of the same address with another token: it renews the leases it has, and no more
            self._known[config.url] = host
            self._tasks.start_soon(self._renew, host)
            return host

    async def _renew(self, host: RemoteHost) -> None:
        """Renew the leases that made no request lately, for as long as there are any or may be."""
        while not host.retired or any(world.host is host for world in self._held):
            # Often enough for a renewal to fail before the host frees the lease.
            every_s = max(_OFTEN_S, host.offer.idle_s / 4)
            await anyio.sleep(every_s)
            before = anyio.current_time() - every_s
            # One request for all of them: thousands of trajectories may think at once.
            quiet = {world.handle: world for world in self._held if world.host is host and world.asked_at <= before}
            for handle in await host.renew([*quiet]) if quiet else ():
                if handle in quiet:
                    quiet[handle].lose(f"{host.url} has freed it")

    def _forget(self, config: HostConfig) -> None:
        """Connect again before the next lease: another process may be at the address by then."""
        host = self._known.pop(config.url, None)
        if host is not None:
            host.retired = True
