"""Standard input and output, read and written by callbacks of the event loop.

While they are open, descriptor 0 is the null device and descriptor 1 is standard error, so that a tool's `print` and
its child processes cannot break the protocol, as in the SDK's own transport.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

from mcp.shared.message import SessionMessage

from mcp_servers.kit.direct.streams import Messages, Output

READ_BYTES = 1 << 18
BACKLOG = 256
"""Messages that wait for the SDK before input pauses."""


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


class PipeOutput(Output):
    """Lines to a descriptor. Lines of one iteration of the event loop are written together."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._chunk = memoryview(b"")
        """What is being written; the pipe may have room for a part of it only."""
        self._broken = False
        self.on_room: Callable[[], None] = lambda: None

    @classmethod
    @contextmanager
    def standard(cls) -> Generator[PipeOutput]:
        with _diverted(1, os.O_WRONLY, 2) as descriptor:
            output = cls(descriptor)
            try:
                yield output
            finally:
                # The descriptor may belong to another file from here on, and calls that were cut still answer.
                output._broken = True
                output._loop.remove_writer(descriptor)

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
        self._written()
        # Whether input pauses: a pipe takes 64 KB at a time, so the last write of many finds little left.
        self.on_room()


class PipeInput(Messages):
    """Lines from a descriptor to `receive`, and messages for the SDK from `put`; `end` as in `Messages`."""

    def __init__(
        self, descriptor: int, receive: Callable[[bytes], None], end: Callable[[], Awaitable[None]], output: PipeOutput
    ) -> None:
        super().__init__(end)
        self._descriptor, self._loop = descriptor, asyncio.get_running_loop()
        self._receive, self._output = receive, output
        self._parts: list[bytes] = []
        self._reading = False
        output.on_room = self._resume

    @classmethod
    @contextmanager
    def standard(
        cls, receive: Callable[[bytes], None], end: Callable[[], Awaitable[None]], output: PipeOutput
    ) -> Generator[PipeInput]:
        with _diverted(0, os.O_RDONLY, os.devnull) as descriptor:
            source = cls(descriptor, receive, end, output)
            source._resume()
            try:
                yield source
            finally:
                source._pause()

    async def receive(self) -> SessionMessage | Exception:
        message = await super().receive()
        if not self._reading:
            self._resume()
        return message

    def _readable(self) -> None:
        try:
            data = os.read(self._descriptor, READ_BYTES)
        except BlockingIOError:
            return
        # A socket that the client reset: the end of input, like any other.
        except OSError:
            data = b""
        if not data:
            self.finish()
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

    def finish(self) -> None:
        self._pause()
        # As the SDK reads it: the last line may lack its end.
        if last := b"".join(self._parts):
            self._receive(last)
        super().finish()

    def _pause(self) -> None:
        if self._reading:
            self._loop.remove_reader(self._descriptor)
            self._reading = False

    def _resume(self) -> None:
        # From half of the bound on, so that a slow SDK does not switch the reader with each message.
        if not (self._reading or self._over or self._output.is_full or len(self._messages) > BACKLOG // 2):
            self._loop.add_reader(self._descriptor, self._readable)
            self._reading = True
