"""Standard input and output, read and written by callbacks of the event loop.

While they are open, descriptor 0 is the null device and descriptor 1 is standard error, so that a tool's `print` and
its child processes cannot break the protocol, as in the SDK's own transport.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import cast

from mcp_rollout.mcp_servers.kit.direct.streams import Messages, Output
from mcp_rollout.mcp_wire.lines import LineSplitter

READ_BYTES = 1 << 18


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


class PipeInput:
    """Lines from a descriptor to `receive`; at its end `messages` are closed.

    Input pauses while `messages` wait for the SDK, and while much of `output` waits for the client.
    """

    def __init__(
        self, descriptor: int, receive: Callable[[bytes], None], messages: Messages, output: PipeOutput
    ) -> None:
        self._descriptor, self._loop = descriptor, asyncio.get_running_loop()
        self._receive, self._messages, self._output = receive, messages, output
        self._splitter = LineSplitter()
        self._over = False
        messages.source = self
        output.on_room = lambda: messages.hold(False)

    @classmethod
    @contextmanager
    def standard(cls, receive: Callable[[bytes], None], messages: Messages, output: PipeOutput) -> Generator[PipeInput]:
        with _diverted(0, os.O_RDONLY, os.devnull) as descriptor:
            source = cls(descriptor, receive, messages, output)
            source.resume_reading()
            try:
                yield source
            finally:
                source.close()

    def is_closing(self) -> bool:
        return self._over

    def pause_reading(self) -> None:
        self._loop.remove_reader(self._descriptor)

    def resume_reading(self) -> None:
        self._loop.add_reader(self._descriptor, self._readable)

    def close(self) -> None:
        self._over = True
        self.pause_reading()

    def _readable(self) -> None:
        try:
            data = os.read(self._descriptor, READ_BYTES)
        except BlockingIOError:
            return
        # A socket that the client reset: the end of input, like any other.
        except OSError:
            data = b""
        if not data:
            self.close()
            # As the SDK reads it: the last line may lack its end.
            if last := self._splitter.rest():
                self._receive(cast("bytes", last))
            self._messages.close()
            return
        for line in self._splitter.feed(data):
            self._receive(cast("bytes", line))  # without a limit, none is too long
        self._messages.hold(self._output.is_full)
