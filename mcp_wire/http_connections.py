"""`Connections`: the connections of a server, and how long each may make it wait."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

KEEP_ALIVE_S = 75
"""How long an idle connection is kept: longer than clients keep one, so that they do not send into a closing one. An
answer of which nothing is read for so long ends its connection, too."""


class Connection(Protocol):
    transport: asyncio.Transport

    @property
    def keeps_waiting(self) -> bool:
        """Whether what arrives waits for the answer to an earlier request."""
        ...


class Connections:
    """The connections of a server, and their bounds.

    Args:
        receive_s: How long a request may take to arrive whole, and the first one of a connection to begin.
        unadmitted: Connections without a request of someone who is known; beyond it, the oldest is closed.
    """

    def __init__(self, *, receive_s: float, unadmitted: int) -> None:
        self._receive_s, self._most_unadmitted = receive_s, unadmitted
        self.unadmitted: dict[Connection, None] = {}
        # In order of time, so that a sweep looks at the oldest ones only.
        self.late: dict[Connection, float] = {}
        """Connections with a part of a request, or none yet, by when it began."""
        self.idle: dict[Connection, float] = {}
        self.unread: dict[Connection, tuple[float, int]] = {}
        """Connections whose client does not read its answers: since when, and how many bytes were left then."""

    def add(self, connection: Connection) -> None:
        self.late[connection] = time.monotonic()
        self.unadmitted[connection] = None
        if len(self.unadmitted) > self._most_unadmitted:
            oldest = next(iter(self.unadmitted))
            del self.unadmitted[oldest]
            oldest.transport.abort()

    def discard(self, connection: Connection) -> None:
        for each in (self.unadmitted, self.late, self.idle, self.unread):
            each.pop(connection, None)

    def wait_for_reader(self, connection: Connection) -> None:
        self.unread.pop(connection, None)
        self.unread[connection] = time.monotonic(), connection.transport.get_write_buffer_size()

    async def sweep(self) -> None:
        """Close connections whose client takes too long to send a request, or to read an answer, until cancelled."""
        while True:
            await asyncio.sleep(min(self._receive_s / 10, 1))
            now = time.monotonic()
            for connection, since in list(self.late.items()):
                if now - since < self._receive_s:
                    break
                if connection.keeps_waiting:
                    del self.late[connection]
                    self.late[connection] = now
                else:
                    connection.transport.abort()
            for connection, since in list(self.idle.items()):
                if now - since < KEEP_ALIVE_S:
                    break
                del self.idle[connection]
                # What is left of an answer is a matter of how fast it is read.
                if connection.transport.get_write_buffer_size():
                    self.wait_for_reader(connection)
                connection.transport.close()
            for connection, (since, left) in list(self.unread.items()):
                if now - since < KEEP_ALIVE_S:
                    break
                if connection.transport.get_write_buffer_size() < left:
                    self.wait_for_reader(connection)
                else:
                    connection.transport.abort()
