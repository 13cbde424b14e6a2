"""Requests over streamable HTTP, of calls and of sessions, and their responses: in a document, an event stream, or the
rest of one that broke off.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping

import anyio
import structlog
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCNotification, JSONRPCRequest, RequestId
from pydantic_core import to_json

from mcp_rollout.gateway.transport.channel import OwnChannel
from mcp_rollout.gateway.transport.delivery import Broke, Delivery
from mcp_rollout.gateway.transport.http_answer import PIECE_BYTES, EventStream, HttpAnswer, HttpFault, StatusFault
from mcp_rollout.gateway.transport.http_connection import HttpConnection
from mcp_rollout.gateway.transport.http_exchange import Exchanges, arrival_within, explain_start
from mcp_rollout.gateway.transport.link import Link
from mcp_rollout.gateway.transport.messages import (
    Json,
    answers,
    is_response,
    parse_message,
    read_json,
    read_line,
    result_of,
    typed,
)
from mcp_rollout.gateway.transport.unmatched import describe, unmatched

log = structlog.get_logger(__name__)

_SUBSCRIBE = "subscriptions/listen"
_MOST_FAILED_RESUMPTIONS = 2
_RESUME_S = 1.0
"""Before a stream is resumed, where its server does not say how long to wait."""
_NO_RESPONSE = "the answer is not a response to this request"
_AT_A_STRETCH = 100
"""Messages handled before other tasks get their turn."""


class HttpCalls(OwnChannel):
    """The channel of one connection, and the way of what mcp's session sends beside it.

    Args:
        to_session: Takes the messages of the server that mcp's session handles.
    """

    def __init__(
        self, link: Link, exchanges: Exchanges, to_session: Callable[[SessionMessage], Awaitable[None]]
    ) -> None:
        self._link, self._exchanges, self._to_session = link, exchanges, to_session
        self._elsewhere: dict[RequestId, Json | anyio.CancelScope | None] = {}
        """By request under way: the response that came on the server's own stream; before that what it ends, if any."""

    async def answer(self, request: Json, headers: Mapping[str, str], delivery: Delivery) -> Json:
        """As `OwnChannel.answer`."""
        try:
            return result_of(await self.response(request, headers, delivery))
        except HttpFault as fault:
            delivery.break_off(fault.broke, fault.reason)
            raise anyio.BrokenResourceError from fault

    async def response(
        self, request: Json, headers: Mapping[str, str], delivery: Delivery, *, silent_s: float = math.inf
    ) -> Json:
        """Post a request; returns its response.

        Args:
            silent_s: How long a subscription may be silent before it counts as broken.

        Raises:
            ValueError: what came is not a response to it.
            HttpFault: nothing came that could be one.
        """
        self._elsewhere[request["id"]] = None
        try:
            return await self._response(request, headers, delivery, silent_s)
        finally:
            del self._elsewhere[request["id"]]

    async def _response(self, request: Json, headers: Mapping[str, str], delivery: Delivery, silent_s: float) -> Json:
        lasts = silent_s if request["method"] == _SUBSCRIBE else None
        body = to_json(request)
        connection = await self._exchanges.open("POST", headers, body, delivery, silent_s=lasts)
        answer = connection.answer
        if request["method"] == "initialize":
            self._exchanges.requests.learn(session_id=answer.header(b"mcp-session-id").decode("latin-1"))
        is_plain = answer.status == 200 and not answer.encoding
        try:
            if not is_plain or not answer.is_event_stream:
                if not is_plain or not answer.is_document:
                    self._check(answer)
                while not answer.complete:
                    await connection.arrival()
                if answer.status in (401, 403):  # mcp's session hears of it only what the document says
                    explain_start(self._link, StatusFault(answer))
                return _in_document(answer, request)
            events = EventStream(self._exchanges.limit)
            try:
                response = await self._read_events(connection, events, request, lasts)
            except HttpFault as fault:
                # Without an event id there is nothing to resume from; an answer that cannot be used is not asked for
                # again.
                if not events.last_id or fault.broke is not Broke.LINE:
                    raise
                delivery.break_off(fault.broke, fault.reason)
                response = None
        finally:
            connection.leave()
        if response is None and events.last_id:
            response = await self._resumed(events, request, delivery, lasts)
        if response is None:
            raise HttpFault(Broke.LINE, "the event stream ended without an answer")
        return response

    async def _resumed(
        self, events: EventStream, request: Json, delivery: Delivery, lasts: float | None
    ) -> Json | None:
        """As `_followed`, or the response that comes on the server's own stream meanwhile or came there before.

        "Sending Messages to the Server" forbids that stream to servers, yet some take any GET for the one that resumes,
        and mcp's client accepts it.
        """
        response = self._elsewhere[request["id"]]
        if response is None:
            with anyio.CancelScope() as self._elsewhere[request["id"]]:
                return await self._followed(events, request, delivery, lasts)
            response = self._elsewhere[request["id"]]
        return response if isinstance(response, dict) else None

    def _take_elsewhere(self, response: Json) -> None:
        """Keep a response on the server's own stream for the request under way that it answers."""
        request = next((each for each in self._elsewhere if answers(response, each)), None)
        if request is None:
            return
        waiting, self._elsewhere[request] = self._elsewhere[request], response
        if isinstance(waiting, anyio.CancelScope):
            waiting.cancel()

    async def listen(self, sent: anyio.Event) -> None:
        """Read the server's own stream, which belongs to no request, for as long as the server has one.

        Args:
            sent: Set once the server was asked for it, or could not be.
        """
        # Without a word where the server has none, or the connection ends: calls go on without it.
        try:
            await self._followed(EventStream(self._exchanges.limit), None, Delivery(), math.inf, sent.set)
        except (HttpFault, anyio.BrokenResourceError):
            pass
        except Exception as error:  # boundary: what a server says there, which ends nothing else
            log.warning("http.own_stream_failed", problem=type(error).__name__)
        finally:
            sent.set()

    def _check(self, answer: HttpAnswer) -> None:
        """Raise where an answer that is not an event stream cannot hold the response, before its body is read."""
        if answer.status == 404 and self._exchanges.requests.session_id:
            # Streamable HTTP, "Session Management": this status and this header mean that the session is over.
            raise StatusFault(answer, Broke.SESSION, "the server has ended this session and what it held")
        if answer.encoding:
            problem = f"the answer is encoded ({answer.encoding}), although `identity` was requested"
            raise HttpFault(Broke.CONTENT, problem)
        if answer.status != 200 and (answer.status < 400 or not answer.is_document):
            raise StatusFault(answer)
        if not answer.is_document:
            kind = answer.header(b"content-type")[:80].decode("latin-1")
            raise HttpFault(Broke.CONTENT, f"the answer has the content type {kind!r}")

    async def _read_events(
        self, connection: HttpConnection, events: EventStream, request: Json | None, lasts: float | None
    ) -> Json | None:
        """Handle the messages of a stream up to the response; None if the stream ends without one.

        Args:
            request: None for the server's own stream, whose responses are passed over.
            lasts: Given for a stream without an end: how long it may be silent.

        Raises:
            ValueError: it ends with responses to other requests only.
        """
        answer, handled, foreign = connection.answer, 0, False
        while True:
            # Before what has arrived is taken: more may arrive while it is handled.
            ended = answer.complete and len(answer.body) <= PIECE_BYTES
            piece = answer.take(PIECE_BYTES)
            for data in events.feed(piece):
                if request is None:  # a bad message affects no other
                    if (found := read_line(data)) is not None and is_response(found):
                        self._take_elsewhere(found)
                    elif isinstance(said := found and parse_message(found), JSONRPCRequest | JSONRPCNotification):
                        await self._receive(said)
                elif not is_response(message := read_json(data)):
                    await self._receive(typed(message))
                elif (error := unmatched(message)) is not None:  # on the stream of this request alone
                    raise StatusFault(answer, Broke.CONTENT, describe(error), error)
                elif answers(message, request["id"]):
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
                    answer.reusable = False
                    raise ValueError(_NO_RESPONSE)
                return None
            if not answer.body and not answer.complete:
                await (connection.arrival() if lasts is None else arrival_within(connection, lasts))
            elif len(piece) == PIECE_BYTES:
                await anyio.lowlevel.checkpoint()

    async def _receive(self, message: JSONRPCMessage) -> None:
        """Pass on what a server says within a request: this task's context tells which one."""
        if self._link.is_for_mcp(message):
            await self._to_session(SessionMessage(message))

    async def _followed(
        self,
        events: EventStream,
        request: Json | None,
        delivery: Delivery,
        lasts: float | None,
        sent: Callable[[], object] = bool,
    ) -> Json | None:
        """The response in what goes on after `events.last_id`; None if the server does not resume it.

        What happens to these requests says nothing about whether the call ran: `Delivery.sent` is the post's alone.

        Args:
            request: None to read the server's own stream, again and again.
            lasts: As `_read_events`.
        """
        failed, begun = 0, request is not None
        while failed < _MOST_FAILED_RESUMPTIONS and not self._exchanges.closed:
            if begun:
                await anyio.sleep(_RESUME_S if events.retry_s is None else events.retry_s)
            # The server chooses `retry`, which may be 0: the pace bounds the attempts whatever it chooses.
            await anyio.sleep(delivery.pace.wait_s(anyio.current_time()))
            begun, events = True, events.resumed()
            resuming = {"cache-control": "no-store"}
            if events.last_id:
                resuming["last-event-id"] = events.last_id
            try:
                connection = await self._exchanges.open("GET", resuming, None, delivery, silent_s=lasts, sent=sent)
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
                response = await self._read_events(connection, events, request, lasts)
            except HttpFault as fault:
                if fault.broke is not Broke.LINE and request is not None:
                    raise
                failed = 1 if events.brought else failed + 1
            else:
                failed = 0
                if response is not None:
                    return response
            finally:
                connection.leave()
        return None


def _in_document(answer: HttpAnswer, request: Json) -> Json:
    """The response to this request in a document.

    Raises:
        HttpFault: the status is an error, and the document none of JSON-RPC with the request's own id. A server that
            does not accept a request at all answers without its id.
        ValueError: the document holds no response to this request.
    """
    error = None
    try:
        message = read_json(answer.body)
        answer.body.clear()  # a connection that is kept keeps its last answer
        if (nameless := unmatched(message)) is not None and answer.status in (200, 400):
            answer.reusable = answer.status != 200
            raise StatusFault(answer, Broke.CONTENT, describe(nameless), nameless)
        if answer.status != 200 and isinstance(found := typed(message), JSONRPCError):
            error = found.error
        if not is_response(message) or not answers(message, request["id"]):
            raise ValueError(_NO_RESPONSE)
        if answer.status != 200 and error is None:
            raise ValueError("the answer is not an error")
    except ValueError as fault:
        if answer.status != 200:
            reason = f"{answer.status_line}: {error.message} (code {error.code})" if error is not None else ""
            raise StatusFault(answer, reason=reason, error=error) from fault
        # Its server may answer out of step: the next request would get this one's response, or follow its redirect.
        answer.reusable = False
        raise
    return message
