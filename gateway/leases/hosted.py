"""Entries with the `url` of a gateway that serves worlds: pools of leases there, in place of connections."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace

from gateway.config.models import GatewayConfig, ServerConfig
from gateway.config.tool_selection import ToolSelection
from gateway.errors import ConfigError, GatewayError
from gateway.leases.opening import Openings
from gateway.leases.remote_pool import RemotePool
from gateway.remote.host import OfferedServer
from gateway.remote.hosts import HostConfig, HostList


class Hosted:
    """The pools of such entries; those with the same address and headers are one lease together."""

    def __init__(self) -> None:
        self.pools: list[RemotePool] = []
        self.offered: dict[str, OfferedServer] = {}
        """By entry, what its host serves under it."""
        self.failed: dict[str, GatewayError | ConfigError] = {}
        """By entry, why its host could not be used."""

    async def open(self, config: GatewayConfig, servers: Collection[str], openings: Openings) -> None:
        """Connect to the hosts of these entries."""
        together: dict[tuple[str, tuple[tuple[str, str], ...]], list[str]] = defaultdict(list)
        for server in servers:
            entry = config.servers[server]
            together[entry.url or "", tuple(sorted(entry.headers.items()))].append(server)
        for (url, headers), entries in together.items():
            own = config.model_copy(update={"servers": {server: config.servers[server] for server in entries}})
            try:
                for server in entries:
                    _check(server, config.servers[server])
                host = HostConfig(url=url, headers=dict(headers))
                name = ", ".join(entries)
                pool = RemotePool(own, HostList([host]), openings.http, openings.tasks, name=name, by_entry=True)
                self._add(pool, (await pool.start()).servers)
            except (GatewayError, ConfigError) as error:
                self.failed |= dict.fromkeys(entries, error)

    def _add(self, pool: RemotePool, offered: Mapping[str, OfferedServer]) -> None:
        self.pools.append(pool)
        for server, name in pool.names.items():
            tools = tuple(replace(tool, server=server) for tool in offered[name].tools)
            self.offered[server] = replace(offered[name], tools=tools)


def _check(server: str, entry: ServerConfig) -> None:
    """Raise `ConfigError` for what is decided where the worlds are."""
    if entry.tools != ToolSelection() or entry.roles:
        key = "tools" if entry.tools != ToolSelection() else "roles"
        problem = f"{entry.label} serves worlds, whose tools and roles its own file decides"
        raise ConfigError(problem, key=f"servers.{server}.{key}", remedy="write it in the file that is served there")
