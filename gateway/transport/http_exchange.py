"""The HTTP requests of one connection, each up to the head of its answer: as bytes, with its redirects and cookies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from http.cookiejar import CookieJar
from typing import Any

import anyio
import httpx2
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER

from mcp_rollout.gateway.config.models import ServerConfig
from mcp_rollout.gateway.errors import NothingListens, Unauthorized
from mcp_rollout.gateway.transport.delivery import Broke, Delivery
from mcp_rollout.gateway.transport.http_address import Address, Origin, place, proxy_at, redirected, tls
from mcp_rollout.gateway.transport.http_answer import HttpAnswer, HttpFault, StatusFault
from mcp_rollout.gateway.transport.http_connection import HttpConnection, HttpConnections, NotConnected
from mcp_rollout.gateway.transport.link import Link
from mcp_rollout.mcp_wire.proxies import proxy_of

_OWN = {
    "accept": "application/json, text/event-stream",
    # Compressed, fifty megabytes fit into fifty kilobytes, and a limit would count the latter.
    "accept-encoding": "identity",
    "content-type": "application/json",
}
_SESSION_ID = "mcp-session-id"
_FRAMING = frozenset((b"content-length", b"transfer-encoding"))
_MOST_HEADS = 256
_MOST_COOKIES, _MOST_COOKIE_BYTES = 50, 16 << 10


class Requests:
    """Builds the requests to one server, and keeps what its answers say about the next ones."""

    def __init__(self, config: ServerConfig, *, direct: bool = False) -> None:
        assert config.url is not None
        self._address, self._direct = Address(config.url), direct
        self._given = httpx2.Headers({"user-agent": f"python-httpx2/{httpx2.__version__}"})
        self._given.update({**config.headers})
        self._given.update(_OWN)
        self.cookies = httpx2.Cookies(BoundedCookies())
        self.url = self._address.url
        self._session: dict[str, str] = {}
        self._heads: dict[tuple[str, str, tuple[tuple[str, str], ...]], bytes] = {}
        self.origin = lru_cache(maxsize=_MOST_HEADS)(self._origin)  # of a server's making, where it redirects

    @property
    def session_id(self) -> str:
        """Of the protocol session; empty where the server gave none."""
        return self._session.get(_SESSION_ID, "")

    @property
    def version(self) -> str:
        """Of the protocol, as mcp's session named it last; empty before that."""
        return self._session.get(MCP_PROTOCOL_VERSION_HEADER, "")

    def learn(self, *, session_id: str | None = None, version: str | None = None) -> None:
        """Take over what the handshake says; an empty text takes back what was said."""
        given = {_SESSION_ID: session_id, MCP_PROTOCOL_VERSION_HEADER: version}
        known = {**self._session, **{name: value for name, value in given.items() if value is not None}}
        if known != self._session:
            self._session = {name: value for name, value in known.items() if value}
            self._heads.clear()

    def encode(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
        """A whole request. Raises `HttpFault` where a part of it cannot be sent.

        Args:
            headers: Of this request alone.
        """
        key = (method, url, tuple(headers.items()))
        head = self._heads.get(key)
        if head is None:
            if len(self._heads) >= _MOST_HEADS:  # arguments may be mirrored into headers
                self._heads.clear()
            try:
                head = self._heads[key] = self._head(method, url, headers)
            except (ValueError, httpx2.InvalidURL) as error:  # neither of which quotes a header
                given = (*self._given.items(), *headers.items())
                faulty = {repr(name): "" for name, value in given if not f"{name}{value}".isprintable()}
                where = f" ({', '.join(faulty)} has a line end or another control character)" if faulty else ""
                raise HttpFault(Broke.CONTENT, f"the request cannot be sent: {type(error).__name__}{where}") from None
        return head + b"\r\n" if body is None else b"%scontent-length: %d\r\n\r\n%s" % (head, len(body), body)

    def _head(self, method: str, url: str, headers: Mapping[str, str]) -> bytes:
        request = httpx2.Request(method, url, headers=self._given)
        request.headers.update({**self._session, **headers})
        self.cookies.set_cookie_header(request)
        self._address.complete(request)
        target, proxy = request.url.raw_path, self.origin(url).proxy
        if proxy is not None and request.url.scheme == "http":
            target = b"http://%s%s" % (request.url.netloc, target)
            request.headers.update(proxy.headers)
        lines = [b"%s %s HTTP/1.1" % (method.encode(), target)]
        lines += [b"%s: %s" % (name, value) for name, value in request.headers.raw if name.lower() not in _FRAMING]
        # An HTTP client refuses such a header; these bytes pass none of its checks.
        if any(ends in line for line in lines for ends in (b"\r", b"\n", b"\0")):
            raise ValueError("a header that is to be sent has a line end in it")
        return b"\r\n".join([*lines, b""])

    def keep_cookies(self, url: str, answer: HttpAnswer) -> None:
        """Take over the cookies that an answer sets, by which some load balancers find a session's server."""
        request = httpx2.Request("POST", url)
        self.cookies.extract_cookies(httpx2.Response(answer.status, headers=answer.headers, request=request))
        self._heads.clear()

    def _origin(self, url: str) -> Origin:
        """Where a request to this URL goes."""
        proxy = "" if self._direct else proxy_of(url)
        return Origin(self.url, *place(httpx2.URL(url)), proxy_at(proxy) if proxy else None)


class BoundedCookies(CookieJar):
    """The cookies of one server, which go with each request to it; too many or too long ones are not kept."""

    def extract_cookies(self, response: Any, request: Any) -> None:
        given: list[str] = response.info().get_all("Set-Cookie", [])
        # Before they are parsed, which takes fifty microseconds each.
        if len(given) <= _MOST_COOKIES and sum(map(len, given)) <= _MOST_COOKIE_BYTES:
            super().extract_cookies(response, request)
            if (
                len(self) > _MOST_COOKIES
                or sum(len(each.name + (each.value or "")) for each in self) > _MOST_COOKIE_BYTES
            ):
                self.clear()


class Exchanges:
    """Sends the requests of one connection to its server.

    Args:
        connections: Those of the gateway, and the right to use one.
        direct: Whether no proxy of the environment is used.
    """

    def __init__(self, config: ServerConfig, *, connections: HttpConnections, direct: bool = False) -> None:
        self.requests = Requests(config, direct=direct)
        self.limit = config.max_message_bytes
        self._timeout_s = config.start_timeout_s
        self._connections = connections
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
        sent: Callable[[], object] = bool,
    ) -> HttpConnection:
        """Send a request, and again where it is redirected; returns its connection once the answer has begun.

        `HttpConnection.leave` ends its use. What happens to a request other than POST says nothing about what
        `delivery` is about.

        Args:
            url: Where to, if not to the server's own address.
            silent_s: Given where the answer may be a stream that goes on for as long as its server likes: for how long
                nothing may come. It has no limit as a whole, and takes no slot, as a call that another call waits for.
            sent: Called once the request has left.

        Raises:
            HttpFault: there is no answer.
        """
        place = delivery if method == "POST" else Delivery()
        lasting, slot = silent_s is not None, silent_s is None and not delivery.nested
        to = url or self._reached
        while True:
            data = self.requests.encode(method, to, headers, body)
            origin = self.requests.origin(to)
            connection = await self._connections.take(origin, tls, self._timeout_s, slot=slot)
            connection.among = self._in_use
            self._in_use.add(connection)
            try:
                if self.closed and method != "DELETE":
                    connection.close()
                    raise HttpFault(Broke.LINE, self.closed)
                if body is not None:
                    place.left = True
                connection.send(data, answer := HttpAnswer(self.limit, lasting=lasting))
                if origin.proxy is not None and origin.scheme == "http":
                    answer.via = origin.proxy.label
                sent()
                await (connection.arrival() if silent_s is None else arrival_within(connection, silent_s))
                if answer.status == 407 and answer.via:
                    raise HttpFault(Broke.REJECTED, answer.status_line)
                if answer.sets_cookies:
                    self.requests.keep_cookies(to, answer)
                target = None if answer.status < 300 else self._target(method, to, answer, place)
            except BaseException:  # cleanup, also when cancelled: in mid-answer it closes the connection
                connection.leave()
                raise
            if target is None:
                if body is not None and url is None:
                    self._reached = to if answer.status < 300 else self.requests.url
                return connection
            # Its body has no reader, and may have no end.
            connection.leave()
            to = target

    def _target(self, method: str, url: str, answer: HttpAnswer, delivery: Delivery) -> str | None:
        """Where an answer redirects a request; None if the answer counts. Raises `HttpFault` as `open`."""
        target = redirected(method, url, answer.status, answer.header(b"location"))
        if target is not None and not delivery.may_follow(url, target):
            raise HttpFault(Broke.LINE, f"{answer.status_line}: redirected again, or to where it was sent before")
        return target

    def close(self, reason: str) -> None:
        """End every exchange under way, and begin none but the DELETE that ends the session."""
        self.closed = self.closed or reason
        for connection in list(self._in_use):
            connection.fail(HttpFault(Broke.LINE, reason))


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
