# pyright: basic, reportMissingImports=false
"""What one process keeps between trajectories: running environments, the trace store, tokenizers.

`PROCESS` is the named place for it, and the only global state of this package: with a single controller, AReaL builds
a new workflow for every group, and has no object that could keep a gateway.
"""

from __future__ import annotations

import asyncio
import copy
import threading
from functools import partial
from typing import Any

from areal.infra.utils.concurrent import register_loop_cleanup

from mcp_rollout.gateway.catalogue.tool_config import read_lock
from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.gateway.logs import configure_logs_by_default
from mcp_rollout.rollout.areal.settings import Settings
from mcp_rollout.rollout.areal.stopping import Watch
from mcp_rollout.rollout.tokens.chat_template import read_chat_template
from mcp_rollout.rollout.tokens.verl_builder import ContinuousTokens, load_tokens
from mcp_rollout.rollout.trace.run_record import describe_run
from mcp_rollout.rollout.trace.store import TraceStore
from mcp_rollout.rollout.training.environments import Environments, Lock
from mcp_rollout.rollout.training.gateways import Gateways, Recordings

MOST_LOOPS = 4
"""Event loops of one process that play trajectories: AReaL has one for training and one for evaluation."""


class Runtime:
    """What the trajectories of one event loop share; connections belong to the loop that opened them.

    Args:
        model: the directory of the model's tokenizer.
        gconfig: AReaL's sampling parameters.
        seed: AReaL's seed of the run.
        processes: rollout processes of a node, which share its sessions.
        window: trajectories whose failures are looked at together.
    """

    def __init__(
        self, settings: Settings, *, model: str, gconfig: dict[str, Any], seed: int, processes: int, window: int
    ) -> None:
        configure_logs_by_default()
        self.store = TraceStore(settings.trace_dir, key="mcp.trace_dir")
        self.watch = Watch(settings.trace_dir, window=window, max_failed_share=settings.max_failed_share)
        self._gateways = Gateways()
        self._recordings = Recordings(settings, self._gateways)
        self.recorded = self._recordings.engine
        lock = str(settings.tool_config_path) if settings.tool_config_path else None
        bounds = {key: gconfig[key] for key in ("max_new_tokens", "max_tokens")}
        record = partial(
            describe_run,
            "training",
            engine="areal",
            model=model,
            chat_template=read_chat_template(settings.chat_template, key="mcp.chat_template"),
            settings={"tool_format": settings.tool_format},
            sampling=gconfig | settings.model_dump(mode="json", exclude={"environment"}) | {"seed": seed},
            lock=lock,
        )
        self.environments = Environments(
            self._gateways,
            self.store,
            Lock(path=lock, entries=read_lock(lock) if lock else (), key="mcp.tool_config_path"),
            load=partial(settings.load, workers_per_node=processes),
            limits=lambda environment: settings.limits_for(environment, **bounds),
            record=record,
        )

    async def close(self) -> None:
        await self._gateways.close()
        self.store.close()
        self._recordings.close()


class Process:
    """The runtimes of this process by event loop, and its tokenizers by model."""

    def __init__(self) -> None:
        # By the loop itself: the id of one that was closed may be that of the next.
        self._runtimes: dict[asyncio.AbstractEventLoop, Runtime] = {}
        self._tokens: dict[str, ContinuousTokens] = {}
        self._lock = threading.Lock()

    def tokens(self, model: str, settings: Settings) -> ContinuousTokens:
        """A token builder for one trajectory. A model's tokenizer is loaded once.

        Raises:
            ConfigError: there is no tokenizer, or no such tool format.
        """
        with self._lock:  # of the threads in which AReaL builds workflows
            if model not in self._tokens:
                self._tokens[model] = load_tokens(
                    model,
                    tool_format=settings.tool_format,
                    chat_template=read_chat_template(settings.chat_template, key="mcp.chat_template"),
                    template_kwargs=settings.chat_template_kwargs,
                    key="tokenizer_path",
                )
            return copy.copy(self._tokens[model])  # it remembers whether the trajectory's template began a thought

    def runtime(self, settings: Settings, **arguments: Any) -> Runtime:
        """The runtime of the running event loop, which is closed with the loop: AReaL closes it with the engine.

        Raises:
            ConfigError: more event loops play trajectories than `MOST_LOOPS`, each with its own servers; or the lock
                cannot be read.
        """
        loop = asyncio.get_running_loop()
        # The loops of training and evaluation are two threads.
        with self._lock:
            if loop not in self._runtimes:
                if len(self._runtimes) >= MOST_LOOPS:
                    problem = f"{MOST_LOOPS} engines of this process have their own servers already"
                    raise ConfigError(problem, key="rollout", remedy="destroy an engine before making another")
                self._runtimes[loop] = Runtime(settings, **arguments)
                # AReaL has no other hook for an end.
                register_loop_cleanup(partial(self._close, loop))
            return self._runtimes[loop]

    async def _close(self, loop: asyncio.AbstractEventLoop) -> None:
        await self._runtimes.pop(loop).close()


PROCESS = Process()
