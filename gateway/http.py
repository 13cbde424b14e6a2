"""A server behind a URL: streamable HTTP (and the older SSE), with faults that stay with the call they belong to.

mcp's transport lets one reset POST or one read timeout end the whole session. Here a transport beneath it turns every
such fault into an answer for the call that met it and notes how far the request got.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from types import TracebackType
from typing import Any, Self

import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from gateway.config import Kind, ServerConfig
from gateway.link import Link
from gateway.wire import DELIVERY, Delivery

_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)
_SPARE_S = 5.0
"""Reads outlive the call's own deadline by this much, so that the deadline is what ends a call."""

_SILENCE_S = 86400.0
"""How long an event stream may be silent; the calls on it have their own deadlines."""


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
        try:
            response = await self._inner.handle_async_request(request)
        except httpx2.TransportError as error:
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
            self._link.trouble = reason
            if isinstance(error, _NOT_SENT):
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


@cache
def _tls() -> ssl.SSLContext:
    """Loading the certificates costs some 50 ms and 800 KB; one set serves every client."""
    return httpx2.create_ssl_context()


class HttpTransport:
    """mcp's streams over a client that this connection alone uses."""

    def __init__(self, config: ServerConfig, link: Link) -> None:
        self._config, self._link = config, link
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Any:
        return await self._stack.enter_async_context(self._streams())

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(exc_type, exc_val, exc_tb)

    @asynccontextmanager
    async def _streams(self) -> AsyncGenerator[Any]:
        config = self._config
        assert config.url is not None
        if config.kind is Kind.SSE:
            sse = sse_client(
                config.url, dict(config.headers), timeout=config.start_timeout_s, sse_read_timeout=_SILENCE_S
            )
            async with sse as (read, write):
                yield _EndWatch(read, self._link), write
            return
        async with (
            self._client() as client,
            streamable_http_client(
                config.url, http_client=client, max_sse_event_size=config.max_message_bytes
            ) as streams,
        ):
            yield streams

    def _client(self) -> httpx2.AsyncClient:
        config = self._config
        # Not limited: a handshake-era session holds a GET for good, and a full pool would wait for ever.
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
        inner = httpx2.AsyncHTTPTransport(verify=_tls(), limits=limits)
        timeout = httpx2.Timeout(config.start_timeout_s, read=config.call_timeout_s + _SPARE_S)
        guard = CallGuard(inner, self._link, config.max_message_bytes)
        return httpx2.AsyncClient(transport=guard, headers=dict(config.headers), timeout=timeout)


class _EndWatch:
    """A read stream that tells the link when it ends; the SSE transport has no other way to say so."""

    def __init__(self, inner: Any, link: Link) -> None:
        self._inner, self._link = inner, link

    async def receive(self) -> SessionMessage | Exception:
        return await self._inner.receive()

    async def aclose(self) -> None:
        await self._inner.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self._inner.__anext__()
        except StopAsyncIteration:
            self._link.end("the server closed its event stream")
            raise

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool | None:
        return await self._inner.__aexit__(exc_type, exc_val, exc_tb)
