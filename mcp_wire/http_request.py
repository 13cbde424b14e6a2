"""`Request` and its `DirectAnswer`: what a server reads of an HTTP request, and the ways to answer it without ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

BEARER = "mcp_wire.bearer"
"""In the state of a request's scope: what `Site.admit` returned."""
_STREAM = (
    b"content-type: text/event-stream\r\ncache-control: no-cache, no-transform\r\nconnection: keep-alive\r\n"
    b"x-accel-buffering: no\r\ntransfer-encoding: chunked\r\n\r\n"
)
Headers = list[tuple[bytes, bytes]]


class DirectAnswer(NamedTuple):
    """An HTTP answer."""

    status: int
    body: bytes
    kind: bytes = b"application/json"

    def encoded(self, headers: Headers) -> bytes:
        """As it goes on the wire, with further headers in front."""
        # RFC 9110, section 15.5.2: a 401 names the scheme that would be accepted.
        challenge = b"www-authenticate: Bearer\r\n" if self.status == 401 else b""
        own = (STATUS_LINE[self.status], _lines(*headers), challenge, self.kind, len(self.body), self.body)
        return b"%s%s%scontent-type: %s\r\ncontent-length: %d\r\n\r\n%s" % own


class NotAdmitted(Exception):
    """A request that ends its connection, with this answer."""

    def __init__(self, answer: DirectAnswer) -> None:
        super().__init__(answer.status)
        self.answer = answer


class Site(Protocol):
    """What a server makes of requests."""

    def admit(self, request: Request) -> Any:
        """Who sends a request, by its head. Raises `NotAdmitted`, also with the answer that anyone may have."""

    def may_answer(self, request: Request) -> bool:
        """Whether the head of a POST leaves a direct answer open."""
        ...

    async def answer(self, request: Request) -> bool:
        """Answer a whole request directly; False leaves it to the application."""
        ...


class Request:
    """A request whose head has arrived.

    Where it is answered directly, it stands in the place of the object that uvicorn makes for an application, and has
    the attributes that are looked at there.

    Args:
        target: As in the request line.
        head: Headers in their order, names in lower case.
        own: uvicorn's headers of answers.
        common: What the scopes of all its connection's requests have.
    """

    __slots__ = (
        *("_common", "_flow", "_own", "_transport", "bearer", "disconnected", "head", "headers", "keep_alive"),
        *("more_body", "on_disconnect", "parts", "response_complete", "response_started", "target"),
    )
    message_event = asyncio.Event()  # no application waits for it

    def __init__(
        self,
        target: bytes,
        head: Headers,
        own: Headers,
        transport: asyncio.Transport,
        flow: FlowControl,
        common: Any,
    ) -> None:
        self.target, self.head, self._own = target, head, own
        self._transport, self._flow, self._common = transport, flow, common
        self.headers = dict(head)
        """By name; of several values the last one."""
        self.parts: list[bytes] = []
        self.bearer: Any = None
        """What `Site.admit` returned."""
        self.response_started = False
        """Before the answer of a call: whether it is an event stream."""
        self.on_disconnect: Callable[[], None] | None = None
        """Called if the connection is lost before the answer is complete."""
        self.more_body, self.keep_alive, self.response_complete, self.disconnected = True, True, False, False

    @property
    def repeats(self) -> bool:
        """Whether a header has several values."""
        return len(self.headers) < len(self.head)

    @property
    def body(self) -> bytes:
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)

    def scope(self) -> Any:
        """The ASGI scope, without what uvicorn reads of the request line."""
        return {**self._common, "headers": self.head, "state": {**self._common["state"], BEARER: self.bearer}}

    def direct_scope(self) -> Any:
        """The ASGI scope of a request that `Site.answer` was asked about."""
        scope = self.scope()
        scope |= {"method": "POST", "path": self.target.decode(), "raw_path": self.target, "query_string": b""}
        return scope

    @property
    def is_over(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._transport.is_closing()

    def respond(self, answer: DirectAnswer) -> None:
        if not self.is_over:
            self.response_started = True
            self._transport.write(answer.encoded(self._own))

    def send_event(self, event: bytes) -> None:
        """Send a part of an event stream, which is the answer from now on."""
        if not self.response_started:
            self.response_started = True
            self._transport.write(STATUS_LINE[200] + _lines(*self._own) + _STREAM)
        self._transport.write(_chunk(event))

    def end_stream(self, event: bytes) -> None:
        self._transport.write(_chunk(event) + _chunk(b""))

    async def room(self) -> None:
        """Wait until the transport takes further bytes, or is lost."""
        await self._flow.drain()


@lru_cache(maxsize=16)
def _lines(*headers: tuple[bytes, bytes]) -> bytes:
    # uvicorn's change once a second.
    return b"".join([b"%s: %s\r\n" % each for each in headers])


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)
