"""The running environments of one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import anyio

from gateway.catalogue.tool_config import LockEntry
from gateway.gateway import Gateway
from rollout.environment.config import Environment
from rollout.environment.validation import LOCK_KEY, locked_tools
from rollout.loop.limits import Limits
from rollout.process import tune_collector
from rollout.shards.hosts import hosts_of
from rollout.trace.run_record import RunRecord
from rollout.trace.store import TraceStore
from rollout.training.gateways import Gateways

Tools = dict[str, dict[str, Any]]
"""OpenAI-style schemas by exposed name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenEnvironment:
    """An environment whose servers are running."""

    environment: Environment
    gateway: Gateway
    limits: Limits
    tools: Tools | None
    """Schemas from the lock; None without a lock."""
    run: str
    """Name of the run record."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lock:
    """The file of locked tools and our entries in it; None and no entries without one."""

    path: str | None = None
    entries: Sequence[LockEntry] = ()
    key: str = LOCK_KEY
    """The trainer's key that names the file."""


class Environments:
    """The environments of one process by name, each opened at its first trajectory.

    Args:
        load: returns an environment with the trainer's overrides.
        limits: the limits of its trajectories.
        record: describes what its trajectories share; reads files, and is called in a thread.
    """

    def __init__(
        self,
        gateways: Gateways,
        store: TraceStore,
        lock: Lock,
        *,
        load: Callable[[str], Environment],
        limits: Callable[[Environment], Limits],
        record: Callable[[Environment, Gateway, Tools | None], RunRecord],
    ) -> None:
        self._gateways, self._store, self._lock = gateways, store, lock
        self._load, self._limits, self._record = load, limits, record
        self._open: dict[str, OpenEnvironment] = {}

    async def get(self, name: str) -> OpenEnvironment:
        """Return the running environment `name`, and start it first if needed.

        Raises:
            ConfigError: no such environment, or the lock does not match the live definitions.
            GatewayError: a required server did not start; the next call tries again.
        """
        if name not in self._open:
            environment = self._load(name)
            # If a server of the lock did not start, the policy would be shown tools that it cannot call.
            locked = {entry.definition.server for entry in self._lock.entries if entry.environment == name}
            gateway = await self._gateways.get(
                name, lambda: environment.requiring(locked), hosts=lambda: hosts_of(environment)
            )
            tools = locked_tools(name, self._lock.entries, gateway, path=self._lock.path, key=self._lock.key)
            record = await anyio.to_thread.run_sync(self._record, environment, gateway, tools)
            self._open[name] = OpenEnvironment(
                environment=environment,
                gateway=gateway,
                limits=self._limits(environment),
                tools=tools,
                run=self._store.describe(record),
            )
            tune_collector()  # the process now holds nearly all that lives as long as it does
        return self._open[name]
