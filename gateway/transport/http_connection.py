"""A pool of HTTP/1.1 connections that carry one request at a time and are reused.

httpx2's pool looks at all its connections for each request, and its transports take several tasks' turns for each
answer. Here a request is one write, and its answer wakes the task that waits for it once.
"""

from __future__ import annotations

import asyncio
import select
import ssl
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import cast

import anyio

from mcp_rollout.gateway.transport.delivery import Broke
from mcp_rollout.gateway.transport.http_address import Origin, Proxy
from mcp_rollout.gateway.transport.http_answer import HttpAnswer, HttpFault
from mcp_rollout.mcp_wire.admission import is_address

KEEPALIVE_S = 2.0
"""How long an idle connection is used again. Stock uvicorn closes idle ones after 5 s: a request that it meets closing
is lost on the way, and whether it ran is unknown."""
_MOST_DRAINED_BYTES = 64 << 10
_MOST_UNREAD_BYTES = 256 << 10
"""Of a stream whose reader is busy; what comes after it waits in the server."""
_NEXT_ADDRESS_S = 0.25
"""How long a host's first address has to answer before the next one is tried beside it (RFC 8305)."""


class NotConnected(HttpFault):
    """No connection could be made; nothing was sent."""


class HttpConnection(asyncio.Protocol):
    """One connection: `send` begins an exchange, `arrival` waits for more of its answer, `leave` ends it."""

    def __init__(self, origin: Origin, pool: HttpConnections) -> None:
        self.origin = origin
        self.idle_since = 0.0
        self.answer = HttpAnswer(0)
        """Of the exchange under way."""
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._poll = select.poll()
        self._waiter: asyncio.Future[None] | None = None
        self._fault: HttpFault | None = None
        self._in_exchange = self._draining = self._paused = False
        self._drained = 0
        self.slot: object | None = None
        """In whose place it holds a slot of the pool; given back by `leave`."""
        self.among: set[HttpConnection] = set()
        """Where its user keeps the connections in use; `leave` takes it out."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    @property
    def usable(self) -> bool:
        """Whether a request may be written. What arrives on an idle connection is its end, or belongs to no request."""
        if self._transport is None or self._transport.is_closing() or self._fault is not None:
            return False
        # Asked of the kernel: the end of a connection that the server has closed may not have reached the event loop
        # yet, and a request written now would be lost with its delivery unknown.
        return not self._poll.poll(0)

    async def tunnel(self, proxy: Proxy, tls: ssl.SSLContext) -> None:
        """Have a proxy connect to the origin, and speak TLS with that. Raises `HttpFault`: nothing was sent to it."""
        assert self._transport is not None
        host = f"[{self.origin.host}]" if ":" in self.origin.host else self.origin.host
        to = f"{host}:{self.origin.port}"
        lines = (f"{name}: {value}" for name, value in {"host": to, **proxy.headers}.items())
        answer = HttpAnswer(sys.maxsize, lasting=True)
        answer.via = proxy.label
        try:
            self.send("\r\n".join([f"CONNECT {to} HTTP/1.1", *lines, "", ""]).encode(), answer)
            while not answer.status:
                await self.arrival()
            if answer.status >= 300:
                raise HttpFault(Broke.CONNECT, f"CONNECT was answered {answer.status_line}")
            self._in_exchange = False
            loop = asyncio.get_running_loop()
            self._transport = await loop.start_tls(self._transport, self, tls, server_hostname=self.origin.host)
        except HttpFault as fault:
            self.close()
            raise HttpFault(Broke.CONNECT, fault.reason) from None
        except BaseException:  # cleanup, also when cancelled
            self.close()
            raise

    def send(self, request: bytes, answer: HttpAnswer) -> None:
        """Write a request whole; what arrives is read into `answer`."""
        assert self._transport is not None
        self._in_exchange, self.answer = True, answer
        self._transport.write(request)

    async def arrival(self) -> None:
        """Wait until a JSON answer is complete, or there is more of any other or lasting one. Raises `HttpFault`."""
        if self._paused:
            self._pause(False)
        if self._fault is None:
            # One waiter at most: an exchange has one caller. No `await` since it last looked, so no wake-up was missed.
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self.check()

    def check(self) -> None:
        """Raise the `HttpFault` that has ended the exchange, if there is one."""
        if self._fault is not None:
            raise self._fault

    def leave(self, *, answered: bool = False) -> None:
        """End the exchange: keep the connection where its answer is complete, or will be in a moment; else close it.

        Args:
            answered: Whether the answer is known: an event stream goes on for some bytes after the event that holds it.
        """
        self.among.discard(self)
        if self.slot is not None:
            self._pool.slots.release_on_behalf_of(self.slot)
            self.slot = None
        if not self._in_exchange:
            return
        self._in_exchange = False
        if self._paused:
            self._pause(False)
        if self._fault is not None or not self.answer.reusable:
            self.close()
        elif self.answer.complete:
            self._pool.keep(self)
        elif answered and self._pool.has_room:
            # Not kept as idle before its end has arrived: the next answer would begin with bytes of this one.
            self._draining, self._drained = True, 0
            self._pool.draining += 1
            asyncio.get_running_loop().call_later(KEEPALIVE_S, self._drain_no_longer, self.answer)
        else:
            self.close()

    def close(self) -> None:
        """Close the connection now, whatever it carries."""
        self._end_draining()
        if self._transport is not None:
            self._transport.abort()

    def fail(self, fault: HttpFault) -> None:
        """End the exchange under way with this fault."""
        self._fault = self._fault or fault
        self.close()
        self._wake()

    def data_received(self, data: bytes) -> None:
        # Bytes that no request asked for: they could not be distinguished from the next answer.
        if not self._in_exchange and not self._draining:
            self.close()
            return
        answer = self.answer
        try:
            answer.feed(data)
        except HttpFault as fault:
            self.fail(fault)
            return
        if self._draining:
            self._drain(len(data))
        # A document is of use only as a whole, so its pieces do not wake the caller; of a stream each piece may hold an
        # event.
        elif answer.complete or (answer.status and (not answer.is_document or answer.encoding or answer.lasting)):
            if len(answer.body) > _MOST_UNREAD_BYTES and not answer.complete and not self._paused:
                self._pause(True)
            self._wake()

    def _pause(self, pause: bool) -> None:
        assert self._transport is not None
        self._paused = pause
        self._transport.pause_reading() if pause else self._transport.resume_reading()

    def eof_received(self) -> None:
        pass  # and so the transport closes

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_draining()
        try:
            if exc is not None:
                raise HttpFault(Broke.LINE, f"ReadError: {exc}".rstrip(": "))
            self.answer.end()
        except HttpFault as fault:
            self._fault = self._fault or fault
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _drain(self, size: int) -> None:
        self.answer.body.clear()
        self._drained += size
        if self.answer.complete:
            self._end_draining()
            self._pool.keep(self)
        elif self._drained > _MOST_DRAINED_BYTES:
            self.close()

    def _drain_no_longer(self, answer: HttpAnswer) -> None:
        if self._draining and self.answer is answer:
            self.close()

    def _end_draining(self) -> None:
        self._pool.draining -= self._draining
        self._draining = False


class HttpConnections:
    """The connections of one gateway: those kept idle, and the right to use any.

    Args:
        most: Connections in use at a time; as many may be idle.
    """

    def __init__(self, most: int) -> None:
        self.slots = anyio.CapacityLimiter(most)
        """One for each request under way, in turn: each takes a descriptor."""
        self._most_idle = most
        self._idle: defaultdict[Origin, list[HttpConnection]] = defaultdict(list)
        self._number_idle = 0
        self._closing: asyncio.TimerHandle | None = None
        self._closed = False
        self.draining = 0
        """Connections whose answers are known and not at their end."""

    async def take(
        self, origin: Origin, tls: Callable[[], ssl.SSLContext], timeout_s: float, *, slot: bool = True
    ) -> HttpConnection:
        """An idle connection, the latest used first, or a new one; `leave` gives it back.

        Args:
            timeout_s: For connecting.
            slot: Whether to wait for a slot. A call that another call waits for takes none: with all slots held by
                outer calls, neither would end. Nor does what lasts as long as its session.

        Raises:
            HttpFault: there is none within `timeout_s`; nothing was sent.
        """
        # On behalf of an object: the limiter takes each borrower once, and one task may have several posts under way.
        holder = object() if slot else None
        if holder is not None:
            try:
                # First without waiting, which is cheaper: the awaited form yields to the event loop even when there is
                # a slot.
                self.slots.acquire_on_behalf_of_nowait(holder)
            except anyio.WouldBlock:
                await self.slots.acquire_on_behalf_of(holder)
        idle = self._idle[origin]
        while idle:
            # The latest used first: the others reach their age limit and are closed, so the pool shrinks with the load.
            connection = idle.pop()
            self._number_idle -= 1
            if connection.usable and asyncio.get_running_loop().time() - connection.idle_since < KEEPALIVE_S:
                break
            connection.close()
        else:
            try:
                connection = await self._open(origin, tls, timeout_s)
            except BaseException:  # cleanup, also when cancelled
                if holder is not None:
                    self.slots.release_on_behalf_of(holder)
                raise
        connection.slot = holder
        return connection

    async def _open(self, origin: Origin, tls: Callable[[], ssl.SSLContext], timeout_s: float) -> HttpConnection:
        proxy, peer = origin.proxy, origin.proxy or origin
        where = f" by way of {proxy.label}" if proxy is not None else ""
        try:
            with anyio.fail_after(timeout_s):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: HttpConnection(origin, self),
                    peer.host,
                    peer.port,
                    ssl=tls() if peer.scheme == "https" else None,
                    # A race of tasks, for names that may have an address that answers and one that does not.
                    happy_eyeballs_delay=None if is_address(peer.host) else _NEXT_ADDRESS_S,
                )
                if proxy is not None and origin.scheme == "https":
                    await connection.tunnel(proxy, tls())
        except TimeoutError:
            raise HttpFault(Broke.CONNECT, f"ConnectTimeout: no connection within {timeout_s:g} s{where}") from None
        except OSError as error:  # a TLS error is one too
            fault = NotConnected if proxy is None else HttpFault
            raise fault(Broke.CONNECT, f"ConnectError: {error}".rstrip(": ") + where) from error
        return connection

    @property
    def has_room(self) -> bool:
        """Whether another connection may be kept."""
        return not self._closed and self._number_idle + self.draining < self._most_idle

    def keep(self, connection: HttpConnection) -> None:
        """Keep a connection for the next request, as far as there is room."""
        if not self.has_room:
            connection.close()
            return
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle[connection.origin].append(connection)
        self._number_idle += 1
        if self._closing is None:
            self._closing = loop.call_later(KEEPALIVE_S, self._close_idle)

    def _close_idle(self) -> None:
        """Close the connections that were idle for too long; the first of each list are."""
        loop = asyncio.get_running_loop()
        latest, self._closing = loop.time() - KEEPALIVE_S, None
        for origin, idle in list(self._idle.items()):
            old = next((number for number, each in enumerate(idle) if each.idle_since > latest), len(idle))
            for connection in idle[:old]:
                connection.close()
            self._number_idle -= old
            del idle[:old]
            if not idle:
                del self._idle[origin]
        if self._number_idle:
            self._closing = loop.call_later(KEEPALIVE_S / 2, self._close_idle)

    def close(self) -> None:
        """Close what is idle, and keep nothing any more."""
        self._closed = True
        if self._closing is not None:
            self._closing.cancel()
        for idle in self._idle.values():
            for connection in idle:
                connection.close()
        self._idle.clear()
        self._number_idle = 0
