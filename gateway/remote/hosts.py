"""Which host a lease goes to."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import anyio

if TYPE_CHECKING:
    from gateway.config.hosts import HostConfig


_PAUSE_S = 2.0
"""How long a host that could not be reached is not asked again, while there are others."""


class Hosts(Protocol):
    """Chooses a host for each lease. Other tasks may give a host back than the one that took it."""

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

    async def take(self) -> HostConfig:
        now = anyio.current_time()
        ready = [host for host in self._hosts if self._not_before.get(host.url, -math.inf) <= now]
        if not ready:
            await anyio.sleep_until(min(self._not_before.values()))
            ready = [min(self._hosts, key=lambda host: self._not_before.get(host.url, -math.inf))]
        host = min(ready, key=lambda host: self._leases[host.url])
        self._leases[host.url] += 1
        return host

    def give_back(self, host: HostConfig, *, lost: bool) -> None:
        self._leases[host.url] -= 1
        if lost:
            self._not_before[host.url] = anyio.current_time() + _PAUSE_S
        else:
            self._not_before.pop(host.url, None)
