"""A session for verl's stock `tool_agent`, which has no end-of-trajectory hook.

verl creates and releases a tool around every call. Here the first call of a trajectory opens a session, keyed weakly by
verl's `AgentData`; when verl drops that object, the session ends.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping
from uuid import uuid4

import ray
import ray.util
from verl.experimental.agent_loop.tool_agent_loop import AgentData

from gateway.catalogue.tool_config import LockEntry
from gateway.config.models import GatewayConfig
from gateway.config.servers_file import load_servers
from gateway.gateway import Gateway
from gateway.leases.session import Session
from rollout.environment.config import load_environment
from rollout.environment.validation import refuse_differences
from rollout.verl.gateways import Gateways
from rollout.verl.settings import share

_WORKER_NAME = "agent_loop_worker_"
TASK_KEY = "mcp"
"""Key in a row's `tools_kwargs`: `{task, seed}` of the world, empty and 0 where the row has none."""


class StockSessions:
    """One session per trajectory and source.

    verl tells its tools nothing of each other, so each announces itself, and all have before the first is called.
    """

    def __init__(self, gateways: Gateways) -> None:
        self._gateways = gateways
        self._opening: weakref.WeakKeyDictionary[AgentData, dict[str, asyncio.Task[Session]]] = (
            weakref.WeakKeyDictionary()
        )
        self._owners: set[asyncio.Task[None]] = set()
        self._locked: dict[str, dict[tuple[str, str], LockEntry]] = {}
        """By source, then by server and tool: what this worker's lock holds."""

    def expect(self, entry: LockEntry) -> None:
        """The lock of this worker holds `entry`: its server has to run, and to define the tool like that."""
        tool = entry.definition
        self._locked.setdefault(entry.source, {})[tool.server, tool.name] = entry

    async def get(self, agent_data: AgentData, entry: LockEntry) -> Session:
        """The trajectory's session on the servers that the lock entry came from.

        Raises:
            ConfigError: the entry's source cannot be read.
            LockMismatch: the servers of this worker define their tools otherwise than the lock.
            GatewayError: a server of the lock did not start, which the next trajectory tries again; or no session
                became free.
        """
        sessions = self._opening.setdefault(agent_data, {})
        if entry.source not in sessions:
            opening = self._open(weakref.ref(agent_data), agent_data.tools_kwargs.get(TASK_KEY) or {}, entry)
            sessions[entry.source] = asyncio.create_task(opening)
        return await asyncio.shield(sessions[entry.source])

    async def _open(self, agent_data: weakref.ref[AgentData], task: Mapping[str, object], entry: LockEntry) -> Session:
        gateway = await self._gateway(entry)
        loop = asyncio.get_running_loop()
        entered: asyncio.Future[Session] = loop.create_future()
        dropped = asyncio.Event()

        async def own() -> None:
            """Enter and leave the lease in one task, since verl's calls come from many."""
            try:
                async with gateway.lease(
                    trajectory=uuid4().hex, task=str(task.get("task", "")), seed=int(str(task.get("seed", 0)))
                ) as session:
                    entered.set_result(session)
                    await dropped.wait()
            except BaseException as error:  # handed to the call that waits for the session
                if entered.done() or not isinstance(error, Exception):
                    entered.cancel()
                    raise
                entered.set_exception(error)

        held = agent_data()
        if held is not None:
            # The finalizer may run in any thread that drops the last reference.
            weakref.finalize(held, lambda: loop.is_closed() or loop.call_soon_threadsafe(dropped.set)).atexit = False
            del held
        else:  # the trajectory ended while the servers were starting
            dropped.set()
        owner = asyncio.create_task(own(), name="stock session")
        self._owners.add(owner)
        owner.add_done_callback(self._owners.discard)
        return await entered

    async def _gateway(self, entry: LockEntry) -> Gateway:
        locked = list(self._locked.get(entry.source, {}).values())
        needed = {each.definition.server for each in locked}
        # Not the gateway of `mcp_agent`, whose limits the trainer's configuration may override.
        gateway = await self._gateways.get(
            f"tool_agent {entry.source}", lambda: share(gateway_config(entry).requiring(needed), workers_per_node())
        )
        # The preflight has compared them, on another machine perhaps, and with other processes in any case.
        refuse_differences(locked, gateway, lock=locked, path="LOCK")
        return gateway


def workers_per_node() -> int:
    """verl's agent-loop workers on a node of this job; 1 outside of Ray.

    The stock loop hands its tools no configuration. What there is of it are the workers, by the names that verl gives
    them, spread evenly over the nodes (`AgentLoopManager._init_agent_loop_workers`, verl 0.9.1).
    """
    if not ray.is_initialized():
        return 1
    workers = sum(name.startswith(_WORKER_NAME) for name in ray.util.list_named_actors())
    nodes = sum(bool(node["Alive"]) and node["Resources"].get("CPU", 0) > 0 for node in ray.nodes())
    return max(1, -(-workers // max(1, nodes)))


def gateway_config(entry: LockEntry) -> GatewayConfig:
    """The servers that a lock entry was written from: an environment's file, or a servers file."""
    if entry.environment is None:
        return load_servers(entry.source)
    return load_environment(entry.source, ".")
