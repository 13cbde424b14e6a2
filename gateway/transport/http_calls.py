"""`tools/call` over streamable HTTP on the gateway's own connections; answers are documents or event streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import anyio
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCNotification
from pydantic_core import to_json

from gateway.transport.channel import Json, LeftToSession, answers, is_response, read_json, result_of, typed
from gateway.transport.delivery import Broke, Delivery
from gateway.transport.event_stream import EventStream
from gateway.transport.http_answer import HttpAnswer, HttpFault
from gateway.transport.http_client import NOT_FOLLOWED, redirected
from gateway.transport.http_connection import HttpConnection, HttpConnections
from gateway.transport.http_request import Requests, tls
from gateway.transport.http_streams import ReadStream
from gateway.transport.link import Link

if TYPE_CHECKING:
    from gateway.config.models import ServerConfig

_MOST_FAILED_RESUMPTIONS = 2
_RESUME_S = 1.0
"""Before a stream is resumed, where its server does not say how long to wait."""
_NO_RESPONSE = "the answer is no response to this request"
_AT_A_STRETCH = 100
"""Messages handled before other tasks get their turn."""
_PIECE_BYTES = 128 << 10
"""Bytes of a stream that are read before other tasks get theirs: each may be a line."""


class HttpCalls:
    """The channel of one connection.

    Args:
        requests: Builds requests as the connection's client would.
        inbound: Takes the messages of an event stream that mcp handles.
    """

    def __init__(
        self,
        config: ServerConfig,
        link: Link,
        *,
        requests: Requests,
        connections: HttpConnections,
        inbound: ReadStream,
    ) -> None:
        self._config, self._link, self._requests = config, link, requests
        self._connections, self._inbound = connections, inbound
        self._in_use: set[HttpConnection] = set()

    async def send(self, request: Json, headers: Mapping[str, str], delivery: Delivery) -> Json:
        """As `Channel.send`."""
        release = None if delivery.nested else await self._slot()
        try:
            return result_of(await self._answer(request, headers, delivery))
        except HttpFault as fault:
            delivery.break_off(fault.broke, fault.reason)
            raise anyio.BrokenResourceError from fault
        finally:
            if release is not None:
                release()

    def close(self, reason: str) -> None:
        """End every exchange under way."""
        for connection in list(self._in_use):
            connection.fail(HttpFault(Broke.LINE, reason))

    async def _slot(self) -> Callable[[], None]:
        """Wait for a slot; returns what gives it back. A call that another call waits for needs none."""
        # On behalf of an object: the limiter takes each borrower once, and one task may have several posts under way.
        holder, slots = object(), self._connections.slots
        try:
            # First without waiting, which is cheaper: the awaited form yields to the event loop even when there is a
            # slot.
            slots.acquire_on_behalf_of_nowait(holder)
        except anyio.WouldBlock:
            await slots.acquire_on_behalf_of(holder)
        return partial(slots.release_on_behalf_of, holder)

    async def _answer(self, request: Json, headers: Mapping[str, str], delivery: Delivery) -> Json:
        """Post a request; returns its response. Raises what `send` raises, and `HttpFault`."""
        token = self._requests.token
        connection = await self._exchange("POST", headers, to_json(request), delivery)
        answer = connection.answer
        try:
            if answer.status == 200 and answer.is_event_stream and not answer.encoding:
                return await self._in_events(connection, request, headers, delivery)
            self._check(answer, token)
            while not answer.complete:
                await connection.arrival()
        finally:
            self._leave(connection)
        return _in_document(answer, request)

    async def _exchange(
        self, method: str, headers: Mapping[str, str], body: bytes | None, delivery: Delivery
    ) -> HttpConnection:
        """Send a request, and again where it is redirected; returns its connection once the answer has begun.

        `_leave` ends the use of the connection.
        """
        url, place = self._requests.reached, delivery if method == "POST" else Delivery()
        while True:
            connection = await self._sent(method, url, headers, body, delivery)
            answer = connection.answer
            target = redirected(method, url, answer.status, answer.header(b"location"))
            if target is None:
                if method == "POST":
                    self._requests.reached = url if answer.status == 200 else self._requests.url
                return connection
            self._leave(connection)
            if not place.may_follow(url, target):
                raise HttpFault(Broke.LINE, answer.status_line + NOT_FOLLOWED)
            url = target

    async def _sent(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, delivery: Delivery
    ) -> HttpConnection:
        data = self._requests.encode(method, url, headers, body)
        # mcp's session gets the token, and this call goes with it.
        if data is None:
            raise LeftToSession
        origin, timeout_s = self._requests.origin(url), self._config.start_timeout_s
        connection = await self._connections.take(origin, tls, timeout_s)
        self._in_use.add(connection)
        try:
            # A GET that resumes a stream says nothing about whether the call was sent.
            if body is not None:
                delivery.left()
            connection.send(data, self._config.max_message_bytes)
            await connection.arrival()
        except BaseException:  # cleanup, also when cancelled: in mid-answer it closes the connection
            self._leave(connection)
            raise
        self._requests.keep_cookies(url, connection.answer)
        return connection

    def _leave(self, connection: HttpConnection) -> None:
        """End the use of a connection; it is kept where its answer was read to the end."""
        self._in_use.discard(connection)
        connection.leave(answered=False)

    def _check(self, answer: HttpAnswer, token: str | None) -> None:
        """Raise where an answer that is no event stream cannot hold the response, before its body is read."""
        if answer.status == 404 and self._requests.session_id:
            # Streamable HTTP, "Session Management": this status and this header mean that the session is over.
            raise HttpFault(Broke.SESSION, "the server has ended this session and what it held")
        if self._requests.rejected(answer, token):
            # The table decides whether the call is sent again; then mcp's session gets the new token.
            raise HttpFault(Broke.REJECTED, f"the server rejected the access token (HTTP {answer.status})")
        if answer.encoding:
            problem = f"the answer is encoded ({answer.encoding}), although `identity` was requested"
            raise HttpFault(Broke.CONTENT, problem)
        if answer.status != 200 and (answer.status < 400 or not answer.is_document):
            raise HttpFault(Broke.LINE, answer.status_line)
        if not answer.is_document:
            kind = answer.header(b"content-type")[:80].decode("latin-1")
            raise HttpFault(Broke.CONTENT, f"the answer has the content type {kind!r}")

    async def _in_events(
        self, connection: HttpConnection, request: Json, headers: Mapping[str, str], delivery: Delivery
    ) -> Json:
        """The response in an event stream, or in what resumes it."""
        events = EventStream(self._config.max_message_bytes)
        try:
            response = await self._read_events(connection, events, request)
        except HttpFault as fault:
            # Without an event id there is nothing to resume from; an answer that cannot be used is not asked for again.
            if not events.last_id or fault.broke is not Broke.LINE:
                raise
            delivery.break_off(fault.broke, fault.reason)
            response = None
        if response is None and events.last_id:
            response = await self._resumed(request, headers, events, delivery)
        if response is None:
            raise HttpFault(Broke.LINE, "the event stream ended without an answer")
        return response

    async def _read_events(self, connection: HttpConnection, events: EventStream, request: Json) -> Json | None:
        """Handle the messages of a stream up to the response; None where the stream ends without one.

        Raises:
            ValueError: it ends with responses to other requests only.
        """
        answer, number, handled, foreign = connection.answer, request["id"], 0, False
        while True:
            # Before what has arrived is taken: more may arrive while it is handled.
            ended = answer.complete and len(answer.body) <= _PIECE_BYTES
            piece = answer.take(_PIECE_BYTES)
            for data in events.feed(piece):
                message = read_json(data)
                if not is_response(message):
                    await self._receive(message)
                # Without an id it is an error that its server could not match, on the stream of this request alone.
                elif answers(message, number) or message.get("id") is None:
                    # The stream usually ends right after its response; what is left of it is drained so the connection
                    # can be kept.
                    connection.leave(answered=True)
                    return message
                else:  # late, to a call that has ended: passed over, as in lines
                    foreign = True
                handled += 1
                if handled % _AT_A_STRETCH == 0:
                    await anyio.lowlevel.checkpoint()
            if ended:
                connection.check()
                if foreign:
                    raise ValueError(_NO_RESPONSE)
                return None
            if not answer.body and not answer.complete:
                await connection.arrival()
            elif len(piece) == _PIECE_BYTES:
                await anyio.lowlevel.checkpoint()

    async def _receive(self, message: Json) -> None:
        """Pass on what a server says within the call: this task's context tells whose call it is."""
        found = typed(message)
        if isinstance(found, JSONRPCNotification) and found.method != "notifications/cancelled":
            self._link.on_notification(found.method, found.params, None)
        else:
            await self._inbound.put(SessionMessage(found))

    async def _resumed(
        self, request: Json, headers: Mapping[str, str], events: EventStream, delivery: Delivery
    ) -> Json | None:
        """The response in a stream that goes on after `events.last_id`; None where the server does not resume it.

        What happens to these requests says nothing about whether the call ran: `Delivery.sent` is the post's alone.
        """
        kept = {name: value for name, value in headers.items() if name == MCP_PROTOCOL_VERSION_HEADER}
        failed = 0
        while failed < _MOST_FAILED_RESUMPTIONS:
            await anyio.sleep(_RESUME_S if events.retry_s is None else events.retry_s)
            # The server chooses `retry`, which may be 0: the pace bounds the attempts whatever it chooses.
            await anyio.sleep(delivery.pace.wait_s(anyio.current_time()))
            events = events.resumed()
            resuming = {**kept, "cache-control": "no-store", "last-event-id": events.last_id}
            try:
                connection = await self._exchange("GET", resuming, None, delivery)
            except HttpFault:
                failed += 1
                continue
            try:
                answer = connection.answer
                if answer.status != 200 or not answer.is_event_stream or answer.encoding:
                    failed += 1
                    continue
                # The answer is under way again, so the fault noted before does not count any more.
                delivery.mend()
                response = await self._read_events(connection, events, request)
            except HttpFault as fault:
                if fault.broke is not Broke.LINE:
                    raise
                failed += 1
            else:
                failed = 0
                if response is not None:
                    return response
            finally:
                self._leave(connection)
        return None


def _in_document(answer: HttpAnswer, request: Json) -> Json:
    """The response to this request in a document.

    Raises:
        HttpFault: the status is an error, and the document none of JSON-RPC with the request's own id. A server that
            does not accept a request at all answers without its id.
        ValueError: the document holds no response to this request.
    """
    try:
        message = read_json(answer.take())
        if not is_response(message) or not answers(message, request["id"]):
            raise ValueError(_NO_RESPONSE)
        if answer.status != 200 and not isinstance(typed(message), JSONRPCError):
            raise ValueError("the answer is no error")
    except ValueError as error:
        if answer.status != 200:
            raise HttpFault(Broke.LINE, answer.status_line) from error
        raise
    return message
