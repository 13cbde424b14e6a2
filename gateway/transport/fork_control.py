"""The gateway's end of the socket on which it asks a fork server for processes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import anyio

from gateway.transport.forked_process import Streams

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
