"""One shard: a Ray actor that owns the servers of an environment and serves their worlds at a port of its own."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass

import ray
import structlog
from pydantic import SecretStr

from mcp_rollout.gateway.serve.app import Serving, serving
from mcp_rollout.gateway.serve.config import ServeConfig
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.startup import opened_environment

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ShardState:
    """What a shard answers when it is looked at."""

    url: str
    """Where it serves; another one after each restart."""
    leases: int
    """Its leases, waiting ones included."""
    process: int


class Shard:
    """Starts its servers at the first `state`. It ends with its process, and so do the servers."""

    def __init__(self, environment: Environment, token: str, idle_s: float) -> None:
        self._environment, self._token, self._idle_s = environment, token, idle_s
        self._serving: asyncio.Future[Serving] | None = None
        self._owner: asyncio.Task[None] | None = None

    async def state(self) -> ShardState:
        """Where it serves, and its load; waits until it does.

        Raises:
            ConfigError: a server did not start; the next call tries again.
        """
        if self._serving is None or (self._serving.done() and self._serving.exception()):
            self._serving = asyncio.get_running_loop().create_future()
            # Servers are closed by the task that opened them, so a task of its own holds them.
            self._owner = asyncio.create_task(self._hold(self._serving))
        # A caller that gives up must not end the start, for which others wait.
        served = await asyncio.shield(self._serving)
        return ShardState(served.url, served.leases, os.getpid())

    async def _hold(self, started: asyncio.Future[Serving]) -> None:
        config = ServeConfig(host=ray.util.get_node_ip_address(), tokens=(SecretStr(self._token),), idle_s=self._idle_s)
        try:
            async with opened_environment(self._environment) as gateway, serving(gateway, config) as served:
                started.set_result(served)
                await asyncio.Event().wait()
        except Exception as error:  # boundary of the owner task: `state` raises it, or starts again
            if started.done():
                log.exception("shard.serving_ended")
                self._serving = None
            else:
                started.set_exception(error)
