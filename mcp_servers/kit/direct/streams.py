"""The streams of the SDK's session over lines: what pipes and memory have in common."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

import anyio
from mcp.shared.message import SessionMessage

from mcp_rollout.mcp_wire.streams import Inbox, OpenStream

FULL_BYTES = 1 << 20
"""Bytes of output that wait for the client before input pauses."""
FINISH_S = 5.0
"""Bound on writing the last bytes to a client that does not read them."""


class Output(OpenStream, ABC):
    """Lines to the client. Lines of one iteration of the event loop are written together."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lines: list[bytes] = []
        self._bytes, self._scheduled = 0, False
        self._emptied = asyncio.Event()

    @property
    def is_full(self) -> bool:
        return self._bytes > FULL_BYTES

    def write(self, line: bytes) -> None:
        """Queues one line. Never waits: input pauses while much is queued, so that little more is caused."""
        self._lines.append(line)
        self._bytes += len(line) + 1
        if not self._scheduled:
            self._scheduled = True
            self._emptied.clear()
            self._schedule()

    async def room(self) -> None:
        """Waits until the client has read what is queued, if that is much."""
        if self.is_full:
            await self._emptied.wait()

    async def send(self, item: SessionMessage) -> None:
        """A message of the SDK's."""
        await self.room()
        self.write(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode())

    async def finish(self) -> None:
        """Waits until all is written, or the client is gone, for at most `FINISH_S`."""
        with anyio.move_on_after(FINISH_S):
            while self._scheduled:
                await self._emptied.wait()

    def _schedule(self) -> None:
        self._loop.call_soon(self._flush)

    def _written(self) -> None:
        """Nothing is queued any more."""
        self._scheduled = False
        self._emptied.set()

    @abstractmethod
    def _flush(self) -> None:
        """Write what is queued, or a part of it."""


class Messages(Inbox[SessionMessage | Exception]):
    """Messages of the client for the SDK, from `put`.

    Args:
        end: Awaited after the last message, before the SDK learns that there are no more.
    """

    def __init__(self, end: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self._end = end

    async def receive(self) -> SessionMessage | Exception:
        try:
            return await super().receive()
        except StopAsyncIteration:
            # Here, in the task that runs the SDK's server: the direct calls are over before the SDK ends its own.
            await self._end()
            raise
