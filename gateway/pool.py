"""Which connection a session gets: decided in plain functions, then opened, warmed or closed.

Under scope `shared` all sessions get the same one; under `session` and `process` each gets one that nobody used before
and that nobody uses after.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

import anyio
import structlog
from anyio.abc import TaskGroup

from gateway.connection import Connection
from gateway.errors import GatewayError, ServerUnavailable

log = structlog.get_logger(__name__)

Open = Callable[[], Awaitable[Connection]]
"""Opens a connection and returns it once calls can be sent; raises what `Connection.started` raises."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 8.0
"""Between attempts to reconnect to a server that is down."""


class Pool(Protocol):
    """The connections to one server."""

    async def take(self) -> Connection:
        """A connection for one session. Raises `ServerUnavailable`."""
        ...

    def give_back(self, connection: Connection) -> None:
        """The session is over. Does not wait."""
        ...

    def close(self) -> None:
        """The gateway is closing: start nothing more."""
        ...


class SharedConnection:
    """One connection for all sessions, opened again when it is needed and has died."""

    def __init__(self, open_connection: Open, first: Connection) -> None:
        self._open, self._current = open_connection, first
        self._lock = anyio.Lock()
        self._attempts = 0
        self._failures = 0
        self._last_failure: GatewayError | None = None
        self._not_before = 0.0

    async def take(self) -> Connection:
        if self._current.alive:
            return self._current
        seen = self._attempts
        async with self._lock:
            if self._current.alive:
                return self._current
            if self._attempts > seen and self._last_failure is not None:
                # Somebody else's attempt failed while this session waited for it: one failure serves all.
                raise ServerUnavailable(str(self._last_failure)) from self._last_failure
            await anyio.sleep_until(self._not_before)
            return await self._reconnect()

    async def _reconnect(self) -> Connection:
        self._attempts += 1
        try:
            self._current = await self._open()
        except GatewayError as error:
            pause = min(FIRST_PAUSE_S * 2**self._failures, LONGEST_PAUSE_S)
            self._failures += 1
            self._not_before = anyio.current_time() + pause
            self._last_failure = error
            raise
        self._failures, self._last_failure = 0, None
        log.info("pool.reconnected", server=self._current.server)
        return self._current

    def give_back(self, connection: Connection) -> None:
        pass

    def close(self) -> None:
        pass


class FreshConnections:
    """A connection of its own for every session, from a stock of warm ones where there is any."""

    def __init__(self, open_connection: Open, first: Connection, *, tasks: TaskGroup, min_ready: int) -> None:
        self._open, self._tasks, self._min_ready = open_connection, tasks, min_ready
        self._ready = deque([first])
        self._warming = 0
        self._closing = False
        self.refill()

    async def take(self) -> Connection:
        ready = self._pick()
        self.refill()
        return ready if ready is not None else await self._open()

    def give_back(self, connection: Connection) -> None:
        connection.end("its session is over")
        self.refill()

    def close(self) -> None:
        self._closing = True

    def _pick(self) -> Connection | None:
        while self._ready:
            connection = self._ready.popleft()
            if connection.alive:
                return connection
        return None

    def refill(self) -> None:
        """Start what is missing from the stock, in the background."""
        missing = 0 if self._closing else self._min_ready - len(self._ready) - self._warming
        for _ in range(missing):
            self._warming += 1
            self._tasks.start_soon(self._warm)

    async def _warm(self) -> None:
        try:
            self._ready.append(await self._open())
        except GatewayError as error:
            # The session that finds the stock empty tries for itself and gets to know.
            if not self._closing:
                log.warning("pool.warming_failed", server=error.server, problem=str(error))
        finally:
            self._warming -= 1
