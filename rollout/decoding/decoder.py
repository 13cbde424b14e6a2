# pyright: basic
"""Run a batch as long as it has requests, from one event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread
from transformers import PreTrainedModel

from mcp_rollout.rollout.decoding.batch import ContinuousBatch, Request

_log = logging.getLogger(__name__)


class Decoder:
    """A model's batch. Its steps run in a thread, in a task that begins with the first request of an empty batch.

    Raises:
        ValueError: the model's layers do not all attend to their whole past.
    """

    def __init__(self, model: PreTrainedModel, *, max_sequences: int) -> None:
        self._batch = ContinuousBatch(model, max_sequences=max_sequences)
        # Held while a thread steps the batch, and while requests leave it or its weights change: acquiring it takes one
        # step at most.
        self._lock = anyio.Lock()
        self._futures: dict[int, asyncio.Future[None]] = {}
        self._running: asyncio.Task[None] | None = None

    async def decode(self, request: Request) -> Request:
        """Decode a request to its end, or until it is aborted. Raises what a step raises."""
        if request.ending is not None:  # aborted before it began
            return request
        # No lock: a thread that steps the batch meanwhile takes a new request now or with its next step.
        future = self._futures[id(request)] = asyncio.get_running_loop().create_future()
        self._batch.add(request)
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        await future
        return request

    async def abort(self, request: Request) -> None:
        """End a request before the next step, or before it joins the batch."""
        async with self._lock:
            self._batch.cancel(request)
            self._resolve(request)

    async def abort_all(self) -> None:
        """End every request."""
        async with self._lock:
            for request in self._batch.abort():
                self._resolve(request)

    @asynccontextmanager
    async def changed_weights(self) -> AsyncGenerator[None]:
        """No step runs within the block. After it, every key and value is computed again before its next use."""
        async with self._lock:
            yield
            self._batch.forget()

    async def close(self) -> None:
        """End every request; returns when no step is running, after one step at most, also when cancelled."""
        with anyio.CancelScope(shield=True):
            await self.abort_all()
            if self._running is not None:
                await self._running

    async def _run(self) -> None:
        """Step the batch until it is empty. A failing step fails every request that it has."""
        try:
            while self._batch:
                async with self._lock:
                    for request in await anyio.to_thread.run_sync(self._batch.step):
                        self._resolve(request)
        except Exception as error:  # the boundary of the decode loop: raised from every waiting `decode`
            _log.exception("decoding failed")
            self._batch.abort()
            futures, self._futures = self._futures, {}
            for future in futures.values():
                if not future.done():
                    future.set_exception(error)

    def _resolve(self, request: Request) -> None:
        future = self._futures.pop(id(request), None)
        if future is not None and not future.done():  # its caller may have been cancelled
            future.set_result(None)
