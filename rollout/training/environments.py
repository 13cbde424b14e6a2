"""The running environments of one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import structlog

from mcp_rollout.gateway.catalogue.tool_config import LockEntry
from mcp_rollout.gateway.errors import ConfigError, GatewayError
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.task import Task
from mcp_rollout.rollout.environment.validation import LOCK_KEY, locked_tools
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.process import tune_collector
from mcp_rollout.rollout.shards.hosts import hosts_of
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.run_record import RunRecord
from mcp_rollout.rollout.trace.store import TraceStore
from mcp_rollout.rollout.training.gateways import Gateways

log = structlog.get_logger(__name__)

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

    def tools_for(self, task: Task) -> list[dict[str, Any]] | None:
        """Schemas of the tools that the policy may call at some time, from the lock and in the row's order.

        Returns:
            None without a lock, for `roll_out` to take the session's.

        Raises:
            ConfigError: the row names a tool that the lock does not have.
        """
        if self.tools is None:
            return None
        names = self.tools.keys() if task.callable_tools is None else task.callable_tools
        if missing := [name for name in (*names, *task.later_tools) if name not in self.tools]:
            raise ConfigError(f"tools {missing} are not in the lock", key="extra_info.mcp.tools")
        return [self.tools[name] for name in names]


@dataclass(frozen=True, kw_only=True, slots=True)
class Playable:
    """A row whose task can be played: its environment is running and has the task's tools."""

    running: OpenEnvironment
    tools: list[dict[str, Any]] | None
    """See `OpenEnvironment.tools_for`."""


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
            # Two first trajectories may both get here: they share the start of the gateway, and do the rest twice.
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

    async def begin(self, trace: Trace, row: Mapping[str, Any]) -> Playable | None:
        """Read a row's task into its trace, and start its environment if needed.

        Returns:
            None if the row or its environment is unusable: the trace says why, and is on disk.
        """
        try:
            task = Task.from_row(row)
            trace.take(task)
            running = await self.get(task.environment)
            trace.run = running.run
            return Playable(running=running, tools=running.tools_for(task))
        except (ConfigError, GatewayError) as error:
            log.warning("trajectory could not begin", trajectory=trace.id, code=error.code, error=str(error))
            trace.fail(error.code, str(error))
            self._store.append(trace)
            return None
