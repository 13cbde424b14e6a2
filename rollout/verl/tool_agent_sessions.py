"""Sessions for verl's stock `tool_agent`, which has no end-of-trajectory hook.

verl creates and releases a tool around every call. The first call of a trajectory therefore opens a session, keyed
weakly by verl's `AgentData`; the session ends when verl drops that object.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping
from uuid import uuid4

import ray
import ray.util
from verl.experimental.agent_loop.tool_agent_loop import AgentData

from mcp_rollout.gateway.catalogue.tool_config import LockEntry
from mcp_rollout.gateway.config.models import GatewayConfig
from mcp_rollout.gateway.config.servers_file import load_servers
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.rollout.environment.config import load_environment
from mcp_rollout.rollout.environment.validation import refuse_differences
from mcp_rollout.rollout.training.gateways import ContextTasks, Gateways
from mcp_rollout.rollout.training.settings import share

_WORKER_NAME = "agent_loop_worker_"
TASK_KEY = "mcp"
"""Key in a row's `tools_kwargs` with the `{task, seed}` to reset to; "" and 0 if the row has none."""


class ToolAgentSessions:
    """One session per trajectory and source of lock entries."""

    def __init__(self, gateways: Gateways) -> None:
        self._gateways = gateways
        self._opening: weakref.WeakKeyDictionary[AgentData, dict[str, asyncio.Task[Session]]] = (
            weakref.WeakKeyDictionary()
        )
        self._owners = ContextTasks()
        self._locked: dict[str, dict[tuple[str, str], LockEntry]] = {}
        """This worker's lock entries by source, then by server and tool."""

    def expect(self, entry: LockEntry) -> None:
        """Add an entry of this worker's lock: its server has to run and to define the tool as locked.

        verl builds every tool of the lock before it calls one, so the entries are complete at the first `get`.
        """
        tool = entry.definition
        self._locked.setdefault(entry.source, {})[tool.server, tool.name] = entry

    async def get(self, agent_data: AgentData, entry: LockEntry) -> Session:
        """Return the trajectory's session on the servers of the entry's source.

        Raises:
            ConfigError: the entry's source cannot be read.
            LockMismatch: the servers of this worker define their tools otherwise than the lock.
            GatewayError: a server of the lock did not start, which the next trajectory tries again; or no session
                became free in time.
        """
        sessions = self._opening.setdefault(agent_data, {})
        if entry.source not in sessions:
            opening = self._open(weakref.ref(agent_data), agent_data.tools_kwargs.get(TASK_KEY) or {}, entry)
            sessions[entry.source] = asyncio.create_task(opening)
        # Shielded: parallel calls of a turn share the session, and cancelling one must not cancel it for the others.
        return await asyncio.shield(sessions[entry.source])

    async def _open(self, agent_data: weakref.ref[AgentData], task: Mapping[str, object], entry: LockEntry) -> Session:
        gateway = await self._gateway(entry)
        loop, dropped = asyncio.get_running_loop(), asyncio.Event()
        held = agent_data()
        if held is None:  # the trajectory ended while the servers were starting
            dropped.set()
        else:
            # The finalizer runs in the thread that drops the last reference, which may be any.
            weakref.finalize(held, lambda: loop.is_closed() or loop.call_soon_threadsafe(dropped.set)).atexit = False
            del held  # this coroutine must not keep the trajectory alive
        lease = gateway.lease(
            trajectory=uuid4().hex, task=str(task.get("task", "")), seed=int(str(task.get("seed", 0)))
        )
        return await self._owners.enter(lease, name="tool_agent session", exit_=dropped)

    async def _gateway(self, entry: LockEntry) -> Gateway:
        locked = list(self._locked.get(entry.source, {}).values())
        needed = {each.definition.server for each in locked}
        # Separate from the gateway of `mcp_agent`, whose limits the trainer's configuration may override.
        gateway = await self._gateways.get(
            f"tool_agent {entry.source}", lambda: share(gateway_config(entry).requiring(needed), workers_per_node())
        )
        # The preflight compared them with other processes than these, and possibly on another machine.
        refuse_differences(locked, gateway, lock=locked, path="LOCK")
        return gateway


def workers_per_node() -> int:
    """Number of verl's agent-loop workers on each node of this job; 1 outside of Ray.

    The stock loop gives its tools no configuration, so this counts the actors with verl's worker names, which verl
    spreads evenly over the nodes (`AgentLoopManager._init_agent_loop_workers`, verl 0.9.1).
    """
    if not ray.is_initialized():
        return 1
    workers = sum(name.startswith(_WORKER_NAME) for name in ray.util.list_named_actors())
    nodes = sum(bool(node["Alive"]) and node["Resources"].get("CPU", 0) > 0 for node in ray.nodes())
    return max(1, -(-workers // max(1, nodes)))


def gateway_config(entry: LockEntry) -> GatewayConfig:
    """Load the servers that a lock entry was written from: an environment file or a servers file."""
    if entry.environment is None:
        return load_servers(entry.source)
    return load_environment(entry.source, ".")
