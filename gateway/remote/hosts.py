"""Gateways on other hosts that serve worlds (`mcp-rollout serve`): their addresses, and which one a lease goes to."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, Protocol
from urllib.parse import urlsplit

import anyio
from pydantic import BaseModel, ConfigDict, SecretStr, field_validator

from mcp_rollout.gateway.config.calls import Seconds
from mcp_rollout.gateway.config.variables import expand

_PAUSE_S = 2.0
"""How long a host that could not be reached is not asked again, while there are others."""


class HostConfig(BaseModel):
    """One host, and how long it may be silent."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    direct: ClassVar[bool] = False
    """Whether it is reached without a proxy, whatever the environment says."""
    url: str
    """Where it serves, `http://name:port/mcp`."""
    token: SecretStr | None = None
    """Its bearer token; write a variable: `${NAME}`."""
    connect_timeout_s: Seconds = 5
    """For one connection."""
    lost_after_s: Seconds = 15
    """For how long a host may be out of reach before its worlds count as lost."""

    @field_validator("url")
    @classmethod
    def _names_a_host(cls, value: str) -> str:
        found = urlsplit(value)
        # Messages and traces have it.
        holds_secrets = "@" in found.netloc or found.query
        if found.scheme not in ("http", "https") or not found.hostname or holds_secrets:
            raise ValueError("url must begin with http:// or https://, name a host, and hold no password and no query")
        return value

    @field_validator("token", mode="before")
    @classmethod
    def _expanded(cls, value: object) -> object:
        return expand(value) if isinstance(value, str) else value


class Hosts(Protocol):
    """Chooses a host for each lease. Other tasks may give a host back than the one that took it."""

    @property
    def count(self) -> int:
        """How many there are at most. Each bounds its own sessions."""
        ...

    async def take(self) -> HostConfig:
        """A host for one lease, counted there; waits until there is one. The caller bounds the wait."""
        ...

    def give_back(self, host: HostConfig, *, lost: bool) -> None:
        """The lease is over.

        Args:
            lost: Whether the host could not be reached, or did not know the lease any more.
        """
        ...


class HostList:
    """A fixed list: the least loaded host that could be reached. Raises ValueError for an empty list."""

    def __init__(self, hosts: Sequence[HostConfig]) -> None:
        if not hosts:
            raise ValueError("a list of hosts needs at least one")
        self._hosts = list(hosts)
        self._leases: Counter[str] = Counter()
        self._not_before: dict[str, float] = {}

    @property
    def count(self) -> int:
        return len(self._hosts)

    async def take(self) -> HostConfig:
        now = anyio.current_time()
        ready = [host for host in self._hosts if self._not_before.get(host.url, -math.inf) <= now]
        if not ready:
            # All are in their pause: the one whose pause ends first is tried again.
            await anyio.sleep_until(min(self._not_before.values()))
            ready = [min(self._hosts, key=lambda host: self._not_before.get(host.url, -math.inf))]
        # No `await` before it is counted: leases that are taken at once are spread over the hosts.
        host = min(ready, key=lambda host: self._leases[host.url])
        self._leases[host.url] += 1
        return host

    def give_back(self, host: HostConfig, *, lost: bool) -> None:
        self._leases[host.url] -= 1
        if lost:
            self._not_before[host.url] = anyio.current_time() + _PAUSE_S
        else:
            # Its lease came to a good end, so a pause that another lease began is over.
            self._not_before.pop(host.url, None)
