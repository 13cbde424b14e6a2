"""Gateways that live as long as the worker process, opened at their first use, and what they record or replay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, ExitStack
from typing import TypeVar

from mcp_rollout.gateway.cassette.recording import Recorder
from mcp_rollout.gateway.cassette.replaying import Replay
from mcp_rollout.gateway.config.models import GatewayConfig
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.gateway.remote.hosts import Hosts
from mcp_rollout.rollout.engines.recorded import RecordedTraces
from mcp_rollout.rollout.process import export_spans
from mcp_rollout.rollout.trace.reader import Traces
from mcp_rollout.rollout.training.settings import TrainingSettings

T = TypeVar("T")


class ContextTasks:
    """Tasks that each enter and leave one async context manager, such as a gateway or a lease.

    The task that opens a connection has to close it, but a trainer's calls come from many tasks.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    async def enter(self, context: AbstractAsyncContextManager[T], *, name: str, exit_: asyncio.Event) -> T:
        """Enter the context in a new task, which leaves it once `exit_` is set or the task is cancelled.

        Returns:
            The value of the context.

        Raises:
            Exception: from entering the context.
        """
        entered: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def own() -> None:
            try:
                async with context as value:
                    entered.set_result(value)
                    await exit_.wait()
            except BaseException as error:  # boundary of the owner task: `enter` raises it
                # After entry the error is the context's own end; a cancellation must end the task. `cancel` frees a
                # caller that still waits.
                if entered.done() or not isinstance(error, Exception):
                    entered.cancel()
                    raise
                entered.set_exception(error)  # raised from `enter` instead of from the task

        task = asyncio.create_task(own(), name=name)
        self._tasks.add(task)  # the event loop itself keeps weak references only
        task.add_done_callback(self._tasks.discard)
        return await entered

    async def close(self) -> None:
        """Leave all contexts."""
        # Cancelled, not closed from here: the task that entered a context has to leave it.
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Gateways:
    """The worker's gateways by name. `record` and `replay` apply to gateways that are opened after they were set."""

    def __init__(self) -> None:
        self.record: Recorder | None = None
        self.replay: Replay | None = None
        self._opening: dict[str, asyncio.Task[Gateway]] = {}
        self._owners = ContextTasks()

    async def get(
        self, name: str, config: Callable[[], GatewayConfig], *, hosts: Callable[[], Hosts | None] = lambda: None
    ) -> Gateway:
        """Return the open gateway `name`, and open it first if there is none; concurrent callers share one start.

        Args:
            config: Its servers.
            hosts: Where they are; None for here.

        Raises:
            ConfigError: from `config`.
            GatewayError: a required server did not start; the next call tries again.
        """
        opening = self._opening.get(name)
        # A start that failed is not kept: the next trajectory tries again.
        if opening is None or (opening.done() and (opening.cancelled() or opening.exception())):
            opening = self._opening[name] = asyncio.create_task(self._open(name, config, hosts), name=f"open {name}")
        # Shielded: cancelling one waiting trajectory must not cancel the start for the others.
        return await asyncio.shield(opening)

    async def close(self) -> None:
        """Stop all servers. If the worker is killed instead, the parent-death signal stops them."""
        # First, since a start whose task has not run yet would open its servers after the others were stopped.
        for opening in self._opening.values():
            opening.cancel()
        await self._owners.close()
        self._opening.clear()
        if self.record is not None:
            self.record.close()
            self.record = None

    async def _open(self, name: str, config: Callable[[], GatewayConfig], hosts: Callable[[], Hosts | None]) -> Gateway:
        gateway = Gateway(config(), name=name, record=self.record, replay=self.replay, hosts=hosts())
        return await self._owners.enter(gateway, name=f"gateway {name}", exit_=asyncio.Event())


class Recordings:
    """Recording, replay and span export of a training: gateways that are opened later do as the settings say.

    Raises:
        ConfigError: a cassette or a directory of traces cannot be read, or the directory of a recording be written.
    """

    def __init__(self, settings: TrainingSettings, gateways: Gateways) -> None:
        self._exits = ExitStack()
        if settings.otel:
            self._exits.callback(export_spans(key=f"{settings.key}.otel"))
        stored = settings.recorded_engine
        self.engine = None if stored is None else RecordedTraces(self._exits.enter_context(Traces(stored)))
        """Stored trajectories that are played in place of the inference server's model."""
        gateways.replay = settings.opened_replay()
        if settings.record is not None:
            gateways.record = Recorder(settings.record, in_directory=True, key=f"{settings.key}.record")

    def close(self) -> None:
        """Send the last spans, and close the files of stored traces. The gateways close their recording."""
        self._exits.close()
