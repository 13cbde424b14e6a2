"""Standard input and output, read and written by callbacks of the event loop; the SDK's stream protocols over them.

While they are open, descriptor 0 is the null device and descriptor 1 is standard error, so that a tool's `print` and
its child processes cannot break the protocol, as in the SDK's own transport.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import anyio
from mcp.shared.message import SessionMessage

READ_BYTES = 1 << 18
BACKLOG = 256
"""Messages that wait for the SDK before input pauses."""
FULL_BYTES = 1 << 20
"""Bytes of output that wait for the client before input pauses."""
FINISH_S = 5.0
"""Bound on writing the last bytes to a client that does not read them."""


def standard_streams_are_pipes() -> bool:
    """Whether the standard streams can be read and written by callbacks: not so for files and terminals."""
    try:
        modes = [os.fstat(descriptor).st_mode for descriptor in (0, 1)]
    except OSError:
        return False
    return all(stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) for mode in modes)


@contextmanager
def _diverted(descriptor: int, mode: int, onto: str | int) -> Generator[int]:
    """A duplicate of a standard descriptor, which itself points elsewhere for the length of the block."""
    # Not inherited: with a tool's child that holds the pipe, the client would not see the server's end.
    own = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    other = os.open(onto, mode) if isinstance(onto, str) else os.dup(onto)
    os.dup2(other, descriptor)
    os.close(other)
    os.set_blocking(own, False)
    try:
        yield own
    finally:
        # O_NONBLOCK belongs to the open file, which other processes may share, and not to the descriptor (fcntl(2)).
        os.set_blocking(own, True)
        os.dup2(own, descriptor)
        os.close(own)


class _Closing:
    """The part of the SDK's stream protocols that has nothing to do here: the block in `standard` closes."""

    async def aclose(self) -> None:
        pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        pass


class Output(_Closing):
    """Lines to the client. Lines of one iteration of the event loop are written together."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._loop = descriptor, asyncio.get_running_loop()
        self._lines: list[bytes] = []
        self._chunk = memoryview(b"")
        """What is being written; the pipe may have room for a part of it only."""
        self._bytes, self._scheduled, self._broken = 0, False, False
        self._emptied = asyncio.Event()
        self.on_room: Callable[[], None] = lambda: None

    @classmethod
    @contextmanager
    def standard(cls) -> Generator[Output]:
        with _diverted(1, os.O_WRONLY, 2) as descriptor:
            output = cls(descriptor)
            try:
                yield output
            finally:
                output._loop.remove_writer(descriptor)

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
            self._loop.call_soon(self._flush)

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

    def _flush(self) -> None:
        if not self._chunk:
            self._lines.append(b"")
            self._chunk, self._lines = memoryview(b"\n".join(self._lines)), []
        try:
            written = len(self._chunk) if self._broken else os.write(self._descriptor, self._chunk)
        except BlockingIOError:
            written = 0
        except OSError:  # the client closed its end; the end of input follows
            self._broken, written = True, len(self._chunk)
        self._chunk = self._chunk[written:]
        self._bytes -= written
        if self._chunk or self._lines:
            self._loop.add_writer(self._descriptor, self._flush)
            return
        self._loop.remove_writer(self._descriptor)
        self._scheduled = False
        self._emptied.set()
        # Whether input pauses: a pipe takes 64 KB at a time, so the last write of many finds little left.
        self.on_room()


class Input(_Closing):
    """Lines from the client to `receive`, and messages for the SDK from `put`.

    Args:
        end: Awaited at the end of input, before the SDK receives it.
    """

    def __init__(
        self, descriptor: int, receive: Callable[[bytes], None], end: Callable[[], Awaitable[None]], output: Output
    ) -> None:
        self._descriptor, self._loop = descriptor, asyncio.get_running_loop()
        self._receive, self._end, self._output = receive, end, output
        self._parts: list[bytes] = []
        self._messages = deque[SessionMessage | Exception]()
        self._arrival, self._over, self._reading = asyncio.Event(), False, False
        output.on_room = self._resume

    @classmethod
    @contextmanager
    def standard(
        cls, receive: Callable[[bytes], None], end: Callable[[], Awaitable[None]], output: Output
    ) -> Generator[Input]:
        with _diverted(0, os.O_RDONLY, os.devnull) as descriptor:
            source = cls(descriptor, receive, end, output)
            source._resume()
            try:
                yield source
            finally:
                source._pause()

    def put(self, message: SessionMessage | Exception) -> None:
        self._messages.append(message)
        self._arrival.set()

    async def receive(self) -> SessionMessage | Exception:
        while not self._messages:
            if self._over:
                # Here, in the task that runs the SDK's server: the direct calls are over before the SDK ends its own.
                await self._end()
                raise anyio.EndOfStream
            # No `await` since the messages were looked at, so no arrival is lost.
            self._arrival.clear()
            await self._arrival.wait()
        message = self._messages.popleft()
        if not self._reading:
            self._resume()
        return message

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    def _readable(self) -> None:
        try:
            data = os.read(self._descriptor, READ_BYTES)
        except BlockingIOError:
            return
        # A socket that the client reset: the end of input, like any other.
        except OSError:
            data = b""
        if not data:
            self._finish()
            return
        first, *lines = data.split(b"\n")
        # A long line arrives in many parts, which are joined once.
        self._parts.append(first)
        if lines:
            whole = b"".join(self._parts)
            self._parts = [lines.pop()]
            for line in (whole, *lines):
                self._receive(line)
        if self._output.is_full or len(self._messages) > BACKLOG:
            self._pause()

    def _finish(self) -> None:
        self._pause()
        self._over = True
        # As the SDK reads it: the last line may lack its end.
        if last := b"".join(self._parts):
            self._receive(last)
        self._arrival.set()

    def _pause(self) -> None:
        if self._reading:
            self._loop.remove_reader(self._descriptor)
            self._reading = False

    def _resume(self) -> None:
        # From half of the bound on, so that a slow SDK does not switch the reader with each message.
        if not (self._reading or self._over or self._output.is_full or len(self._messages) > BACKLOG // 2):
            self._loop.add_reader(self._descriptor, self._readable)
            self._reading = True
