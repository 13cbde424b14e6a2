"""A forked process and its standard streams, as asyncio presents a process that it spawned."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

import anyio

Streams = tuple[socket.socket, int, int]
"""One end each of standard input, output and error."""


class ForkedProcess(asyncio.SubprocessTransport):
    """A fork, with the part of its base that `StdioTransport` uses."""

    def __init__(self, pid: int, handle: int, protocol: asyncio.SubprocessProtocol) -> None:
        super().__init__()
        self._pid, self._handle, self._protocol = pid, handle, protocol
        self._status: int | None = None
        self._ended = self._watched = False
        self._pipes: dict[int, asyncio.BaseTransport] = {}

    async def connect(self, streams: Streams) -> None:
        """Connect our ends of standard input, output and error; a cancellation waits until `close` closes them all."""
        loop = asyncio.get_running_loop()
        stdin, *others = streams
        # Shielded: each end takes iterations of the event loop, and the ones after it would belong to nothing.
        with anyio.CancelScope(shield=True):
            self._pipes[0], _ = await loop.connect_write_pipe(lambda: _Pipe(self._protocol, 0), stdin)
            for fd, stream in enumerate(others, 1):
                protocol = _Pipe(self._protocol, fd)
                self._pipes[fd], _ = await loop.connect_read_pipe(lambda p=protocol: p, os.fdopen(stream, "rb", 0))

    def get_pid(self) -> int:
        return self._pid

    def get_returncode(self) -> int | None:
        return self._status

    def get_pipe_transport(self, fd: int) -> asyncio.BaseTransport:
        return self._pipes[fd]

    def exited(self, status: int | None) -> None:
        """Note that it has ended; without a status where nothing can say how."""
        if not self._ended:
            self._ended, self._status = True, status
            self._protocol.process_exited()

    def watch(self) -> None:
        """Watch for its end directly: its fork server, which would report it, is gone."""
        if not self._ended and not self._watched:
            self._watched = True
            # A pidfd is readable when its process has ended; the status goes to the parent, which is gone.
            asyncio.get_running_loop().add_reader(self._handle, self._noticed)

    def _noticed(self) -> None:
        asyncio.get_running_loop().remove_reader(self._handle)
        self._watched = False
        self.exited(None)

    def close(self) -> None:
        for pipe in self._pipes.values():
            pipe.close()
        if self._watched:
            asyncio.get_running_loop().remove_reader(self._handle)
        # Once: by the second time the number may be another file's.
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


class _Pipe(asyncio.Protocol):
    """Passes one standard stream's events to the process's protocol."""

    def __init__(self, process: asyncio.SubprocessProtocol, fd: int) -> None:
        self._process, self._fd = process, fd

    def data_received(self, data: bytes) -> None:
        self._process.pipe_data_received(self._fd, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._process.pipe_connection_lost(self._fd, exc)


def open_streams() -> tuple[Streams, Streams]:
    """Our ends and theirs of standard input, output and error; input is a socket, as asyncio makes it."""
    ours, theirs = socket.socketpair()
    pipes: list[int] = []
    try:
        for _ in range(2):
            pipes += os.pipe()
    except OSError:  # out of descriptors
        close_streams((ours, *pipes, theirs.detach()))
        raise
    out, their_out, err, their_err = pipes
    return (ours, out, err), (theirs, their_out, their_err)


def close_streams(streams: tuple[socket.socket, *tuple[int, ...]]) -> None:
    """Close the ends that nothing took over."""
    stdin, *others = streams
    stdin.close()
    for each in others:
        os.close(each)


_MESSAGE_BYTES = 1 << 16


class ForkControl:
    """Sends requests with the descriptors that they pass on, one task at a time, and receives answers.

    Args:
        end: A connected socket of packets, which keep the borders of messages.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        # An event loop keeps one callback for a socket that may be written to.
        self._sending = anyio.Lock()
        self._room: asyncio.Future[None] | None = None
        self._is_closed = False

    def listen(self, on_readable: Callable[[], None]) -> None:
        asyncio.get_running_loop().add_reader(self._end, on_readable)

    async def send(self, message: bytes, streams: Streams, timeout_s: float) -> None:
        """Send once the requests before are sent and the socket has room.

        Args:
            timeout_s: Bound on the wait for room, which begins when the requests before are sent.

        Raises:
            OSError: The socket is closed, also during the wait, or the fork server is gone.
            TimeoutError: There was no room in time.
        """
        stdin, *others = streams
        async with self._sending:
            with anyio.fail_after(timeout_s):
                while True:
                    if self._is_closed:
                        raise ConnectionError("the fork server ended")
                    try:
                        socket.send_fds(self._end, [message], [stdin.fileno(), *others])
                        return
                    except BlockingIOError:
                        await self._wait_for_room()

    async def _wait_for_room(self) -> None:
        loop = asyncio.get_running_loop()
        room = self._room = loop.create_future()
        loop.add_writer(self._end, lambda: room.done() or room.set_result(None))
        try:
            await room
        finally:
            # By then the number of a closed socket may be another file's.
            if not self._is_closed:
                loop.remove_writer(self._end)

    def receive(self) -> tuple[bytes, list[int]]:
        """The next message, empty at the end, and the descriptors that came with it; raises OSError without one."""
        message, handles, _, _ = socket.recv_fds(self._end, _MESSAGE_BYTES, 1)
        return message, handles

    def close(self) -> None:
        """Close the socket; the fork server ends at that, and a task that waits to send fails."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._end)
        loop.remove_writer(self._end)
        self._is_closed = True
        self._end.close()
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
