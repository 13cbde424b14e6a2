"""One HTTP request of a connection, up to the head of its answer: its access token, its redirects, its cookies."""

from __future__ import annotations

from collections.abc import Mapping

import anyio
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types import ErrorData

from gateway.config.models import ServerConfig
from gateway.errors import NothingListens, Unauthorized
from gateway.transport.delivery import Broke, Delivery
from gateway.transport.http_address import redirected, tls
from gateway.transport.http_answer import HttpAnswer, HttpFault
from gateway.transport.http_connection import HttpConnection, HttpConnections, NotConnected
from gateway.transport.http_request import Requests
from gateway.transport.link import Link
from gateway.transport.oauth import Authority, is_rejection


class StatusFault(HttpFault):
    """An HTTP status in place of an answer.

    Args:
        error: What its body says, where that is an error of JSON-RPC.
    """

    def __init__(
        self, answer: HttpAnswer, broke: Broke = Broke.LINE, reason: str = "", error: ErrorData | None = None
    ) -> None:
        super().__init__(broke, reason or answer.status_line)
        self.status, self.error = answer.status, error


class Exchanges:
    """Sends the requests of one connection to its server.

    Args:
        authority: Has the access tokens for the server, where it needs any.
        connections: Those of the gateway, and the right to use one.
    """

    def __init__(
        self, config: ServerConfig, *, connections: HttpConnections, authority: Authority | None = None
    ) -> None:
        self.requests = Requests(config)
        self.limit = config.max_message_bytes
        self._timeout_s = config.start_timeout_s
        self._connections, self._authority = connections, authority
        self._reached = self.requests.url
        """Where the last message arrived that was answered with success: there the server has redirected others to."""
        self._in_use: set[HttpConnection] = set()
        self.closed = ""
        """Why nothing is sent any more; empty while it is."""

    async def open(
        self,
        method: str,
        headers: Mapping[str, str],
        body: bytes | None,
        delivery: Delivery,
        *,
        url: str | None = None,
        silent_s: float | None = None,
    ) -> HttpConnection:
        """Send a request, and again where it is redirected; returns its connection once the answer has begun.

        `leave` ends the use of the connection. What happens to a request other than POST says nothing about what
        `delivery` is about.

        Args:
            url: Where to, if not to the server's own address.
            silent_s: Given where the answer may be a stream that goes on for as long as its server likes: for how long
                nothing may come. It has no limit as a whole, and takes no slot, as a call that another call waits for.

        Raises:
            HttpFault: there is no answer. A rejected access token is one for a call, of which the delivery table
                decides whether it is sent again; anything else is sent once more with a new token.
        """
        place = delivery if method == "POST" else Delivery()
        lasting, slot = silent_s is not None, silent_s is None and not delivery.nested
        to, renewed, authority, token = url or self._reached, False, self._authority, None
        while True:
            if authority is not None:
                # One that expires as it arrives is tried all the same.
                token = authority.latest if renewed else await authority.token_for(self._version(headers))
            data = self.requests.encode(method, to, headers, token, body)
            connection = await self._connections.take(self.requests.origin(to), tls, self._timeout_s, slot=slot)
            self._in_use.add(connection)
            try:
                if self.closed and method != "DELETE":
                    connection.close()
                    raise HttpFault(Broke.LINE, self.closed)
                if body is not None:
                    place.left()
                connection.send(data, answer := HttpAnswer(self.limit, lasting=lasting))
                await (connection.arrival() if silent_s is None else arrival_within(connection, silent_s))
                self.requests.keep_cookies(to, answer)
                again = None if answer.status < 300 else self._again(method, to, answer, token, place, renewed=renewed)
            except BaseException:  # cleanup, also when cancelled: in mid-answer it closes the connection
                self.leave(connection)
                raise
            if again is None:
                if body is not None and url is None:
                    self._reached = to if answer.status < 300 else self.requests.url
                return connection
            # Its body has no reader, and may have no end.
            self.leave(connection)
            if authority is not None and again == to:
                await authority.renew(token, answer, self._version(headers))
                renewed = True
            to = again

    def _again(
        self, method: str, url: str, answer: HttpAnswer, token: str | None, delivery: Delivery, *, renewed: bool
    ) -> str | None:
        """Where to send a request again after this answer: to another place, or to the same one with another token.

        None where the answer counts. Raises `HttpFault` as `open`.
        """
        target = redirected(method, url, answer.status, answer.header(b"location"))
        if target is not None:
            if not delivery.may_follow(url, target):
                raise HttpFault(Broke.LINE, f"{answer.status_line}: redirected again, or to where it was sent before")
            return target
        challenge = answer.header(b"www-authenticate")
        if self._authority is None or renewed or not is_rejection(answer.status, challenge):
            return None
        if not delivery.is_call:
            return url
        self._authority.reject(token, answer)
        if challenge:
            raise HttpFault(Broke.REJECTED, f"the server rejected the access token (HTTP {answer.status})")
        return None  # without a challenge it is a status like any other

    def leave(self, connection: HttpConnection, *, answered: bool = False) -> None:
        """End the use of a connection; it is kept where its answer was read to the end.

        Args:
            answered: As `HttpConnection.leave`.
        """
        self._in_use.discard(connection)
        connection.leave(answered=answered)

    def close(self, reason: str) -> None:
        """End every exchange under way, and begin none but the DELETE that ends the session."""
        self.closed = self.closed or reason
        for connection in list(self._in_use):
            connection.fail(HttpFault(Broke.LINE, reason))

    def _version(self, headers: Mapping[str, str]) -> str:
        return headers.get(MCP_PROTOCOL_VERSION_HEADER) or self.requests.version


async def arrival_within(connection: HttpConnection, silent_s: float) -> None:
    """Wait for more of an answer, and no longer than this. Raises `HttpFault`."""
    try:
        with anyio.fail_after(silent_s):
            await connection.arrival()
    except TimeoutError:
        raise HttpFault(Broke.LINE, f"the stream was silent for {silent_s:g} s") from None


def explain_start(link: Link, fault: HttpFault) -> None:
    """Remember a fault as what explains a start that fails."""
    link.trouble = fault.reason
    if isinstance(fault, NotConnected):
        link.start_failure = NothingListens
    elif isinstance(fault, StatusFault) and fault.status in (401, 403):
        link.start_failure = Unauthorized
