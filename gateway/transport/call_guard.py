"""Keep an HTTP fault within the call it belongs to, on a connection that many calls share.

mcp's HTTP transport lets one reset POST or one read timeout end the whole session. `CallGuard`, below it, turns every
such fault into an HTTP error answer for the request that met it, and notes on the request's `Delivery` how it broke.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial

import anyio
import httpx2
from mcp.shared.inbound import MCP_METHOD_HEADER
from mcp_types import JSONRPCError, jsonrpc_message_adapter

from gateway.transport.delivery import DELIVERY, Broke, Delivery, Pace
from gateway.transport.http_client import describe, drain, header, is_plain, note_failure
from gateway.transport.http_streams import BackgroundPosts
from gateway.transport.lines import MOST_VALUES, separators, too_many_values
from gateway.transport.link import Link

_BLANK_LINES = (b"\n\n", b"\r\n\r\n", b"\r\r")
"""What ends an event."""
_MOST_SEPARATORS = 3 * MOST_VALUES // 2
"""In an event stream, of which only pieces are seen here: separators in strings count as well."""


class CallGuard(httpx2.AsyncBaseTransport):
    """Answers 502 in place of a transport fault, bounds the size of an answer, and cancels what has no caller left.

    Args:
        limit: Bytes of one answer.
        background: Sends the messages whose answers have no reader; mcp gets 202 at once.
        posts: Bounds the posts of a gateway that are under way, each of which takes a descriptor.
    """

    def __init__(
        self,
        inner: httpx2.AsyncBaseTransport,
        *,
        link: Link,
        limit: int,
        background: BackgroundPosts,
        posts: anyio.CapacityLimiter,
    ) -> None:
        self._inner, self._link, self._limit, self._background = inner, link, limit, background
        self._posts = posts
        self._pace = Pace()
        """Of attempts to open the event stream that belongs to no call."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        delivery = DELIVERY.get()
        match request.method:
            case "POST" if delivery is not None and delivery.background:
                self._background.start(partial(self._post_in_background, request))
                return httpx2.Response(202, request=request)
            case "POST":
                return await self._post(request, delivery or Delivery())
            case "GET":
                return await self._get(request, delivery)
            case _:
                return await self._answer(request, delivery or Delivery()) or _no_answer(request)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _post_in_background(self, request: httpx2.Request) -> None:
        try:
            response = await self._inner.handle_async_request(request)
            try:
                await drain(response)
            finally:
                await response.aclose()
        except httpx2.HTTPError as error:
            self._link.trouble = describe(error)

    async def _get(self, request: httpx2.Request, delivery: Delivery | None) -> httpx2.Response:
        """Open an event stream: the server's own, or the rest of the answer to the call of `delivery`.

        mcp reopens a stream that ended as soon as the server allows, without a bound; `Pace` spaces the attempts. What
        happens to a GET says nothing about whether the call ran: `Delivery.sent` is the POST's alone.
        """
        # The server may leave the stream silent for as long as it likes.
        request.extensions["timeout"] = {**request.extensions.get("timeout", {}), "read": None}
        own = delivery is None
        pace = self._pace if delivery is None else delivery.pace
        delivery = delivery or Delivery()
        with delivery.awaited():
            await anyio.sleep(pace.wait_s(anyio.current_time()))
            response = await self._answer(request, delivery)
            if response is not None:
                if response.status_code == 200 and _is_event_stream(response):
                    delivery.mend()
                body = _BoundedBody(response, delivery, self._limit, by_event=own)
                response.stream = _AwaitedBody(body, delivery)
                return response
        return _no_answer(request)

    async def _post(self, request: httpx2.Request, delivery: Delivery) -> httpx2.Response:
        """Post once a slot is free, and hold the slot until the answer's last byte, as it holds a descriptor."""
        response: httpx2.Response | None = None
        with delivery.awaited():
            # A call that another call waits for takes no slot: with all slots held by outer calls, neither would end.
            # Nor does a subscription, which lasts as long as its connection, as the handshake era's GET does.
            waits = not delivery.nested and request.headers.get(MCP_METHOD_HEADER) != "subscriptions/listen"
            slot = await self._slot() if waits else None
            try:
                response = await self._post_now(request, delivery)
            finally:
                streamed = response.stream if response is not None else None
                # In `finally`: a cancelled post gives its slot back at once, a stream when mcp closes it.
                if slot is not None and isinstance(streamed, _AwaitedBody):
                    streamed.on_close = slot
                elif slot is not None:
                    slot()
        return response or _no_answer(request)

    async def _slot(self) -> Callable[[], None]:
        """Wait for a slot; returns what gives it back. A call that is waited for by another call needs none."""
        holder = object()
        try:
            self._posts.acquire_on_behalf_of_nowait(holder)
        except anyio.WouldBlock:
            await self._posts.acquire_on_behalf_of(holder)
        return partial(self._posts.release_on_behalf_of, holder)

    async def _post_now(self, request: httpx2.Request, delivery: Delivery) -> httpx2.Response:
        # A new attempt: what broke the one before it does not count any more.
        delivery.mend()
        response = await self._answer(request, delivery)
        if response is None:
            return _no_answer(request)
        self._note_status(request, response, delivery)
        if not is_plain(response):
            encoding = header(response, b"content-encoding")[:40].decode("latin-1")
            problem = f"the answer is encoded ({encoding}), although `identity` was requested"
            delivery.break_off(Broke.CONTENT, problem)
            await response.aclose()
            return _no_answer(request)
        body = _BoundedBody(response, delivery, self._limit)
        if not _is_document(response):
            response.stream = _AwaitedBody(body, delivery)
            return response
        # Read here: mcp would parse the beginning of a document that breaks off or is too long.
        response.stream = body
        with suppress(httpx2.TransportError):
            await response.aread()
        if body.is_whole and (problem := too_many_values(response.content)):
            delivery.break_off(Broke.CONTENT, problem)
            return _no_answer(request)
        if not body.is_whole:
            return _no_answer(request)
        if response.status_code >= 400 and delivery.broke is None and not _answers(request, response.content):
            delivery.break_off(Broke.LINE, _status_line(response))
        return response

    async def _answer(self, request: httpx2.Request, delivery: Delivery) -> httpx2.Response | None:
        """The answer, its body still unread; None where a fault was noted instead."""
        try:
            return await self._inner.handle_async_request(request)
        except httpx2.TransportError as error:
            self._link.note_transport_error(error)
            self._link.trouble = note_failure(error, delivery)
            return None

    def _note_status(self, request: httpx2.Request, response: httpx2.Response, delivery: Delivery) -> None:
        status = response.status_code
        if status == 404 and "mcp-session-id" in request.headers:
            # Streamable HTTP, "Session Management": this status and this header mean that the session is over.
            delivery.break_off(Broke.SESSION, "the server has ended this session and what it held")
        elif delivery.broke is not Broke.REJECTED and status != 200 and (status < 400 or not _is_document(response)):
            # In a document may travel a JSON-RPC error, which says more.
            delivery.break_off(Broke.LINE, _status_line(response))
        elif status == 200 and not _is_document(response) and not _is_event_stream(response):
            kind = header(response, b"content-type")[:80].decode("latin-1")
            delivery.break_off(Broke.CONTENT, f"the answer has the content type {kind!r}")
        self._link.note_status(status)
        if status >= 300:
            self._link.trouble = _status_line(response)


class _BoundedBody(httpx2.AsyncByteStream):
    """The body of an answer: it has a limit, and may break off.

    Args:
        by_event: Whether the limit is one event's, for a stream that lasts as long as its connection.
    """

    def __init__(self, response: httpx2.Response, delivery: Delivery, limit: int, *, by_event: bool = False) -> None:
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        self._inner, self._delivery, self._limit, self._by_event = response.stream, delivery, limit, by_event
        self._is_document = _is_document(response)  # whose values are counted when it is whole
        self.is_whole = True
        """Whether nothing was cut from what was read so far."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = values = 0
        problem = f"the answer has more than max_message_bytes ({self._limit})"
        try:
            async for piece in self._inner:
                size, values = size + len(piece), values + separators(piece)
                if self._by_event and (blank := max(piece.rfind(line) for line in _BLANK_LINES)) >= 0:
                    size, values = len(piece) - blank, separators(piece[blank:])
                if values > _MOST_SEPARATORS and not self._is_document:
                    problem = f"the answer has more than {MOST_VALUES} JSON values"
                    break
                if size > self._limit:
                    break
                yield piece
            else:
                return
        except httpx2.TransportError as error:
            self.is_whole = False
            self._delivery.break_off(Broke.LINE, describe(error))
            raise  # mcp counts failed attempts to resume a stream, and answers the call itself when it gives up
        self.is_whole = False
        self._delivery.break_off(Broke.CONTENT, problem)
        raise httpx2.RemoteProtocolError(problem)

    async def aclose(self) -> None:
        await self._inner.aclose()


class _AwaitedBody(httpx2.AsyncByteStream):
    """An event stream, read until its call is over.

    mcp closes the stream as soon as it has read the response: one that is read to its end had none.
    """

    def __init__(self, inner: httpx2.AsyncByteStream, delivery: Delivery) -> None:
        self._inner, self._delivery = inner, delivery
        self.on_close: Callable[[], None] | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pieces = aiter(self._inner)
        while True:
            piece: bytes | None = None
            # A scope around each piece, not around the loop: none may stay open while a generator is suspended.
            with self._delivery.awaited():
                piece = await anext(pieces, None)
            if piece is None:
                break
            yield piece
        if self._delivery.broke is None:
            self._delivery.break_off(Broke.LINE, "the event stream ended without an answer")

    async def aclose(self) -> None:
        # A stream may be closed more than once; its slot is released once.
        on_close, self.on_close = self.on_close, None
        if on_close is not None:
            on_close()
        await self._inner.aclose()


def _status_line(response: httpx2.Response) -> str:
    return f"HTTP {response.status_code} {response.reason_phrase}".rstrip()


def _answers(request: httpx2.Request, body: bytes) -> bool:
    """Whether this body of an HTTP error is a JSON-RPC error with the request's own id.

    A server that does not accept a request at all answers without its id, and of any other body mcp makes an error of
    its own: neither is the tool's.
    """
    try:
        error = jsonrpc_message_adapter.validate_json(body, by_name=False)
        return isinstance(error, JSONRPCError) and error.id == json.loads(request.content)["id"]
    except (ValueError, KeyError):
        return False


def _is_document(response: httpx2.Response) -> bool:
    return header(response, b"content-type").startswith(b"application/json")


def _is_event_stream(response: httpx2.Response) -> bool:
    return header(response, b"content-type").startswith(b"text/event-stream")


def _no_answer(request: httpx2.Request) -> httpx2.Response:
    """In place of an answer: mcp takes an error status as the end of one request, and an exception as that of all."""
    return httpx2.Response(502, request=request)
