"""The streams that mcp's sessions read and write, driven by callbacks of the event loop instead of tasks."""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

_MOST, _FEW = 1000, 100
"""Items from which a source is paused, and below which it is read again."""
T = TypeVar("T")


class OpenStream:
    """The ends of mcp's stream protocols that have nothing to do here: whatever opens a stream closes it."""

    async def aclose(self) -> None:
        pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        pass


class Source(Protocol):
    """What an inbox pauses; asyncio's reading transports are sources."""

    def is_closing(self) -> bool: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Inbox(OpenStream, Generic[T]):
    """A read stream. Callbacks fill it, so that filling never waits; a reader that falls behind pauses the source."""

    def __init__(self) -> None:
        self._items = deque[T]()
        self._arrival = asyncio.Event()
        self._closed = False
        self.source: Source | None = None
        self._full = self._held = self._paused = False

    def put(self, item: T) -> None:
        """Add an item, unless the stream is closed."""
        if self._closed:
            return
        # Never refused, even when full: what was read cannot be put back. Pausing the source is what bounds it.
        self._items.append(item)
        self._arrival.set()
        if len(self._items) > _MOST:
            self._full = True
            self._pause()

    def hold(self, hold: bool) -> None:
        """Pause the source for another reason, or end that."""
        self._held = hold
        if hold is not self._paused:
            self._pause()

    def _pause(self) -> None:
        wanted, source = self._full or self._held, self.source
        if wanted is not self._paused and source is not None and not source.is_closing():
            self._paused = wanted
            source.pause_reading() if wanted else source.resume_reading()

    def close(self) -> None:
        """Nothing more arrives; what has is still received."""
        self._closed = True
        self._arrival.set()

    async def receive(self) -> T:
        """The next item. Raises StopAsyncIteration after the last one."""
        while not self._items:
            if self._closed:
                raise StopAsyncIteration
            # No `await` since the items were looked at, so no arrival is lost.
            self._arrival.clear()
            await self._arrival.wait()
        if self._full and len(self._items) < _FEW:
            self._full = False
            self._pause()
        return self._items.popleft()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        return await self.receive()
