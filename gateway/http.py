"""A server behind a URL, streamable HTTP, with faults that stay with the call they belong to.

mcp's transport lets one reset POST or one read timeout end the whole session. Here a transport beneath it turns every
such fault into an answer for the call that met it and notes how far the request got.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Any

import httpx2
from mcp.client.streamable_http import streamable_http_client

from gateway.address import Address, Addressed
from gateway.config import ServerConfig
from gateway.link import Link
from gateway.oauth import Authority, AuthorizationFailed, Authorized
from gateway.tap import Tap
from gateway.tls import certificates
from gateway.wire import DELIVERY, Delivery

NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)
_SPARE_S = 5.0
"""Reads outlive the call's own deadline by this much, so that the deadline is what ends a call."""


class CallGuard(httpx2.AsyncBaseTransport):
    """Answers 502 in place of a transport fault, and limits how long an answer may be."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, link: Link, limit: int) -> None:
        self._inner, self._link, self._limit = inner, link, limit

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        delivery = DELIVERY.get() or Delivery()
        # Compressed, fifty megabytes fit into fifty kilobytes, and it is the latter that the limit would count.
        request.headers["accept-encoding"] = "identity"
        if request.method == "GET":
            # A stream the server may leave silent for as long as it likes.
            request.extensions["timeout"] = {**request.extensions.get("timeout", {}), "read": None}
        delivery.refused = ""
        try:
            response = await self._inner.handle_async_request(request)
        except httpx2.TransportError as error:
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
            self._link.trouble = reason
            if isinstance(error, (*NOT_SENT, AuthorizationFailed)):
                delivery.refused = reason
            else:
                delivery.handed_over, delivery.lost = True, reason
            return httpx2.Response(502, request=request)
        delivery.handed_over = True
        if request.method == "POST":
            self._note_status(response, delivery)
            if refusal := self._refusal(response):
                delivery.oversize, delivery.lost = True, refusal
                await response.aclose()
                return httpx2.Response(502, request=request)
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            # An event stream is read as it comes. Of a document that turns out to be too long, mcp shall see nothing:
            # it would keep what came of it, and parse that.
            whole = response.headers.get("content-type", "").startswith("application/json")
            response.stream = _GuardedBody(response.stream, delivery, self._limit, whole=whole)
        return response

    def _refusal(self, response: httpx2.Response) -> str:
        """Why the answer is not read at all; empty where it is."""
        length = response.headers.get("content-length", "")
        if length.isdigit() and int(length) > self._limit:
            return f"the answer has {length} bytes, max_message_bytes is {self._limit}"
        if (encoding := response.headers.get("content-encoding", "identity")) != "identity":
            return f"the answer is encoded ({encoding[:40]}), which was not asked for"
        return ""

    def _note_status(self, response: httpx2.Response, delivery: Delivery) -> None:
        if response.status_code < 400:
            return
        reason = f"HTTP {response.status_code} {response.reason_phrase}".rstrip()
        self._link.trouble = reason
        if response.headers.get("content-type", "").startswith("application/json"):
            return  # a JSON-RPC error travels in it, which says more
        if response.status_code >= 500:
            delivery.lost = reason
        elif response.status_code != 404:  # 404 is how a session ends; mcp words that itself
            delivery.refused = reason

    async def aclose(self) -> None:
        await self._inner.aclose()


class _GuardedBody(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, delivery: Delivery, limit: int, *, whole: bool) -> None:
        self._inner, self._delivery, self._limit, self._whole = inner, delivery, limit, whole

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        kept: list[bytes] = []
        try:
            async for chunk in self._inner:
                size += len(chunk)
                if size > self._limit:
                    self._delivery.oversize = True
                    self._delivery.lost = f"the answer has more than max_message_bytes ({self._limit})"
                    return
                if self._whole:
                    kept.append(chunk)
                else:
                    yield chunk
        except httpx2.TransportError as error:
            # The body ends here; mcp answers the call for want of a response.
            self._delivery.lost = f"{type(error).__name__}: {error}".rstrip(": ")
            return
        for chunk in kept:
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()


def open_client(
    config: ServerConfig,
    address: Address,
    authority: Authority | None,
    *,
    read_timeout_s: float | None = None,
    guard: tuple[Link, int] | None = None,
) -> httpx2.AsyncClient:
    """A client for one connection.

    Args:
        read_timeout_s: Between two pieces of an answer; None waits for ever.
        guard: For a `CallGuard` above everything else: the link, and the most bytes of an answer.
    """
    # Not limited: a handshake-era session holds a GET for good, and a full pool would wait for ever.
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
    transport: httpx2.AsyncBaseTransport = httpx2.AsyncHTTPTransport(verify=certificates(), limits=limits)
    transport = Addressed(transport, address)
    if authority is not None:
        transport = Authorized(transport, authority)
    if guard is not None:
        transport = CallGuard(transport, *guard)
    timeout = httpx2.Timeout(config.start_timeout_s, read=read_timeout_s)
    return httpx2.AsyncClient(transport=transport, headers=dict(config.headers), timeout=timeout)


class HttpTransport:
    """mcp's streams over a client that this connection alone uses.

    Args:
        patience_s: How much longer than a call a stream may be silent: while an answer of ours to a server's request is
            found, and in requests that have bounds of their own.
    """

    def __init__(
        self, config: ServerConfig, link: Link, *, authority: Authority | None = None, patience_s: float = 0.0
    ) -> None:
        self._config, self._link = config, link
        self._authority, self._patience_s = authority, patience_s
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Any:
        return await self._stack.enter_async_context(self._streams())

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(exc_type, exc_val, exc_tb)

    @asynccontextmanager
    async def _streams(self) -> AsyncGenerator[Any]:
        config, link = self._config, self._link
        assert config.url is not None
        address = Address(config.url)
        silence_s = config.call_timeout_s + self._patience_s + _SPARE_S
        guard = link, config.max_message_bytes
        async with (
            open_client(config, address, self._authority, read_timeout_s=silence_s, guard=guard) as client,
            streamable_http_client(address.url, http_client=client, max_sse_event_size=config.max_message_bytes) as (
                read,
                write,
            ),
        ):
            yield Tap(read, link), write
