"""Faults that stay with the call they belong to, on a line that many calls share.

mcp's HTTP transport lets one reset POST or one read timeout end the whole session. `CallGuard`, beneath it, turns every
such fault into an answer for the call that met it and notes how far the request got.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import anyio
import httpx2

from gateway.errors import StartFault
from gateway.transport.background import IS_BACKGROUND, BackgroundPosts
from gateway.transport.delivery import DELIVERY, Delivery, Pace
from gateway.transport.discarded_bodies import drain, header, is_plain
from gateway.transport.link import Link
from gateway.transport.oauth import AuthorizationFailed

NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError, AuthorizationFailed)


class CallGuard(httpx2.AsyncBaseTransport):
    """Answers 502 in place of a transport fault, limits how long an answer may be, and gives up what nobody waits for.

    Args:
        aside: Sends the messages whose answers say nothing; mcp is told 202 at once.
    """

    def __init__(self, inner: httpx2.AsyncBaseTransport, link: Link, limit: int, aside: BackgroundPosts) -> None:
        self._inner, self._link, self._limit, self._aside = inner, link, limit, aside
        self._pace = Pace()
        """Of attempts at the stream that belongs to no call."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        match request.method:
            case "POST" if IS_BACKGROUND.get():
                self._aside.start(partial(self._send_aside, request))
                return httpx2.Response(202, request=request)
            case "POST":
                return await self._post(request, DELIVERY.get() or Delivery())
            case "GET":
                return await self._get(request, DELIVERY.get())
            case _:
                return await self._answered(request, DELIVERY.get() or Delivery()) or _none(request)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _send_aside(self, request: httpx2.Request) -> None:
        try:
            response = await self._inner.handle_async_request(request)
            try:
                await drain(response)
            finally:
                await response.aclose()
        except httpx2.HTTPError as error:
            self._link.trouble = _worded(error)

    async def _get(self, request: httpx2.Request, delivery: Delivery | None) -> httpx2.Response:
        """Open an event stream. mcp opens another where one ends, as soon as the server wishes, for ever."""
        # The server may leave it silent for as long as it likes.
        request.extensions["timeout"] = {**request.extensions.get("timeout", {}), "read": None}
        pace = self._pace if delivery is None else delivery.pace
        delivery = delivery or Delivery()
        with delivery.awaited():
            await anyio.sleep(pace.wait_s(anyio.current_time()))
            if (response := await self._answered(request, delivery)) is not None:
                assert isinstance(response.stream, httpx2.AsyncByteStream)
                response.stream = _AwaitedBody(response.stream, delivery)
                return response
        return _none(request)

    async def _post(self, request: httpx2.Request, delivery: Delivery) -> httpx2.Response:
        with delivery.awaited():
            response = await self._answered(request, delivery)
            if response is None:
                return _none(request)
            self._note_status(response, delivery)
            if not is_plain(response):
                encoding = header(response, b"content-encoding")[:40].decode("latin-1")
                delivery.oversize = True
                delivery.lost = f"the answer is encoded ({encoding}), which was not asked for"
                await response.aclose()
                return _none(request)
            body = _LimitedBody(response, delivery, self._limit)
            if not _is_document(response):
                response.stream = _AwaitedBody(body, delivery)
                return response
            # Read here: of one that breaks off or is too long, mcp would parse what came of it.
            response.stream = body
            await response.aread()
            return response if body.is_whole else _none(request)
        return _none(request)

    async def _answered(self, request: httpx2.Request, delivery: Delivery) -> httpx2.Response | None:
        """The answer, of which the body is still to be read; None where there is no answer."""
        delivery.refused = ""
        try:
            response = await self._inner.handle_async_request(request)
        except httpx2.TransportError as error:
            self._link.trouble = reason = _worded(error)
            self._link.fault = StartFault.UNREACHABLE if isinstance(error, httpx2.ConnectError) else None
            if isinstance(error, NOT_SENT):
                delivery.refused = reason
            else:
                delivery.handed_over, delivery.lost = True, reason
            return None
        delivery.handed_over = True
        return response

    def _note_status(self, response: httpx2.Response, delivery: Delivery) -> None:
        if response.status_code < 400:
            return
        reason = f"HTTP {response.status_code} {response.reason_phrase}".rstrip()
        self._link.trouble = reason
        self._link.fault = StartFault.UNAUTHORIZED if response.status_code in (401, 403) else None
        if _is_document(response):
            return  # a JSON-RPC error travels in it, which says more
        if response.status_code >= 500:
            delivery.lost = reason
        elif response.status_code != 404:  # 404 is how a session ends; mcp words that itself
            delivery.refused = reason


class _LimitedBody(httpx2.AsyncByteStream):
    """The body of an answer, which has a limit and may break off."""

    def __init__(self, response: httpx2.Response, delivery: Delivery, limit: int) -> None:
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        self._inner, self._delivery, self._limit = response.stream, delivery, limit
        self.is_whole = True
        """Of what was read so far; `delivery.lost` may tell of an earlier answer to the same call."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        try:
            async for piece in self._inner:
                size += len(piece)
                if size > self._limit:
                    self.is_whole = False
                    self._delivery.oversize = True
                    self._delivery.lost = f"the answer has more than max_message_bytes ({self._limit})"
                    return
                yield piece
        except httpx2.TransportError as error:
            # The body ends here; mcp answers the call for want of a response.
            self.is_whole = False
            self._delivery.lost = _worded(error)

    async def aclose(self) -> None:
        await self._inner.aclose()


class _AwaitedBody(httpx2.AsyncByteStream):
    """A body that ends when nobody waits for it any more."""

    def __init__(self, inner: httpx2.AsyncByteStream, delivery: Delivery) -> None:
        self._inner, self._delivery = inner, delivery

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pieces = aiter(self._inner)
        while True:
            piece: bytes | None = None
            # Around each piece, not around all: a scope may not stay open while a generator rests.
            with self._delivery.awaited():
                piece = await anext(pieces, None)
            if piece is None:
                return
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()


def _is_document(response: httpx2.Response) -> bool:
    return header(response, b"content-type").startswith(b"application/json")


def _none(request: httpx2.Request) -> httpx2.Response:
    """In place of an answer: mcp takes an error status for the end of one request, and an exception for that of all."""
    return httpx2.Response(502, request=request)


def _worded(error: httpx2.HTTPError) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
