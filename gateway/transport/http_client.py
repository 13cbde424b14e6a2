"""The HTTP client of one connection: one TLS context, secrets kept out of logged URLs, bodies bounded."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from functools import cache
from http.cookiejar import CookieJar
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import httpx2

from gateway.transport.delivery import DELIVERY, Broke, Delivery

if TYPE_CHECKING:
    from gateway.config.models import ServerConfig

MOST_DISCARDED_BYTES = 64 << 10
"""How much of a body that has no reader is read to keep its connection usable; closing costs less than reading more."""
_MOST_COOKIES, _MOST_COOKIE_BYTES = 50, 16 << 10
_KEEPALIVE_S = 2.0
"""How long an idle connection is used again. Stock uvicorn closes idle ones after 5 s: a request that it meets closing
is lost on the way, and whether it ran is unknown."""
_PORTS = {"http": 80, "https": 443}
_SAME_METHOD, _ANY_REDIRECT = frozenset((307, 308)), frozenset((301, 302, 303, 307, 308))
_BODY_HEADERS = frozenset(("content-encoding", "content-length", "transfer-encoding"))
NOT_FOLLOWED = ": redirected again, or to where it was sent before"
Layer = Callable[[httpx2.AsyncBaseTransport], httpx2.AsyncBaseTransport]
"""Wraps a transport in another one."""


class AuthorizationFailed(httpx2.TransportError):
    """No access token was to be had. The message contains no secrets."""


_NOT_CONNECTED = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
    AuthorizationFailed,
)


def note_failure(error: httpx2.TransportError, delivery: Delivery) -> str:
    """Note on `delivery` how a request broke, and return it in words."""
    reason = describe(error)
    delivery.break_off(Broke.CONNECT if isinstance(error, _NOT_CONNECTED) else Broke.LINE, reason)
    return reason


def describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")


@cache
def certificates() -> ssl.SSLContext:
    """The trusted certificates. Loading them costs some 50 ms and 800 KB; one set serves every client."""
    return httpx2.create_ssl_context()


async def load_certificates() -> None:
    """Load the trusted certificates in a thread, before a client is made: the event loop is not held meanwhile."""
    if not certificates.cache_info().currsize:
        await anyio.to_thread.run_sync(certificates)


class Address:
    """A server's URL without what may be secret in it: user, password and query.

    They are added again below every log line, and for requests to that server alone: on the way to a token, requests go
    to other hosts as well.
    """

    def __init__(self, url: str) -> None:
        given = httpx2.URL(url)
        self._origin = place(given)
        self.url = str(given.copy_with(userinfo=b"", query=None, fragment=None))
        self.path, self.query = given.raw_path.partition(b"?")[0], given.query
        self.auth = httpx2.BasicAuth(given.username, given.password) if given.userinfo else None
        self.hides = bool(self.query or self.auth)
        """Whether there is anything to add again."""

    def complete(self, request: httpx2.Request) -> None:
        """Add the hidden parts to a request for this address; leave others as they are."""
        if place(request.url) != self._origin:
            return
        if self.query and request.url.raw_path == self.path:
            request.url = request.url.copy_with(query=self.query)
        if self.auth is not None and "authorization" not in request.headers:
            next(self.auth.sync_auth_flow(request))


def place(url: httpx2.URL) -> tuple[str, str, int]:
    """Its origin."""
    return url.scheme, url.host, url.port or _PORTS.get(url.scheme, 0)


def redirected(method: str, url: str, status: int, location: bytes) -> str | None:
    """Where an answer sends the request, if that is followed: on the same origin, or from http to https there."""
    if status not in (_SAME_METHOD if method == "POST" else _ANY_REDIRECT) or not location:
        return None
    given = httpx2.URL(url)
    try:
        found = given.join(location.decode("latin-1"))
    except (httpx2.InvalidURL, ValueError):
        return None
    before, after = place(given), place(found)
    upgraded = before == ("http", given.host, 80) and after == ("https", given.host, 443)
    if found.userinfo or not (before == after or upgraded):
        return None
    return str(found.copy_with(fragment=None))


class AddressedTransport(httpx2.AsyncBaseTransport):
    """Completes requests for one address, and only while they are under way."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, address: Address) -> None:
        self._inner, self._address = inner, address

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        shown = request.url
        self._address.complete(request)
        try:
            return await self._inner.handle_async_request(request)
        finally:
            # As it was: httpx2 logs the request when its answer has arrived, and errors quote it.
            request.url = shown

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Exchange(httpx2.AsyncBaseTransport):
    """The lowest layer of our own: notes when a request leaves, bounds redirects, and drops bodies without a reader.

    mcp reads the body of a redirect, of the answer to a DELETE and of an answer to a GET that is not an event stream as
    a whole, however long it is. Answers to a POST have a reader, who bounds them.
    """

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        delivery = DELIVERY.get()
        if request.method == "POST" and delivery is not None and isinstance(request.stream, httpx2.AsyncByteStream):
            request.stream = _NotedBody(request.stream, delivery)
        response = await self._inner.handle_async_request(request)
        if request.method == "POST" and delivery is not None and response.is_redirect:
            url = str(request.url)
            target = redirected("POST", url, response.status_code, header(response, b"location"))
            if target is not None and not delivery.may_follow(url, target):
                await response.aclose()
                raise httpx2.RemoteProtocolError(f"HTTP {response.status_code}{NOT_FOLLOWED}")
        if _has_reader(request, response) or _is_short(response):
            return response
        # This closes the connection under it, which costs less than a body without an end.
        await response.aclose()
        headers = [(name, value) for name, value in response.headers.multi_items() if name not in _BODY_HEADERS]
        return httpx2.Response(response.status_code, headers=headers, request=request)

    async def aclose(self) -> None:
        await self._inner.aclose()


class _NotedBody(httpx2.AsyncByteStream):
    """A request's body. It is asked for once there is a connection, immediately before its first byte is written."""

    def __init__(self, inner: httpx2.AsyncByteStream, delivery: Delivery) -> None:
        self._inner, self._delivery = inner, delivery

    def __aiter__(self) -> AsyncIterator[bytes]:
        self._delivery.left()
        return aiter(self._inner)

    async def aclose(self) -> None:
        await self._inner.aclose()


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


def open_client(
    config: ServerConfig,
    address: Address,
    *,
    authorize: Layer | None = None,
    guard: Layer | None = None,
    read_timeout_s: float | None = None,
) -> httpx2.AsyncClient:
    """A client for one connection.

    Args:
        authorize: Adds access tokens, below everything that sees an answer.
        guard: The topmost layer.
        read_timeout_s: Between two pieces of an answer; None waits without a bound.
    """
    # Without a bound: a handshake-era session holds a GET for as long as it lives, and a full pool would wait for it.
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=_KEEPALIVE_S)
    transport: httpx2.AsyncBaseTransport = httpx2.AsyncHTTPTransport(verify=certificates(), limits=limits)
    if address.hides:
        transport = AddressedTransport(transport, address)
    if authorize is not None:
        transport = authorize(transport)
    transport = _Exchange(transport)
    if guard is not None:
        transport = guard(transport)
    headers = httpx2.Headers(dict(config.headers))
    # Compressed, fifty megabytes fit into fifty kilobytes, and a limit would count the latter.
    headers["accept-encoding"] = "identity"
    timeout = httpx2.Timeout(config.start_timeout_s, read=read_timeout_s)
    return httpx2.AsyncClient(transport=transport, headers=headers, timeout=timeout, cookies=BoundedCookies())


def _has_reader(request: httpx2.Request, response: httpx2.Response) -> bool:
    if request.method == "POST":
        return not 300 <= response.status_code < 400
    event_stream = header(response, b"content-type").startswith(b"text/event-stream")
    return request.method == "GET" and response.status_code == 200 and event_stream and is_plain(response)


def _is_short(response: httpx2.Response) -> bool:
    length = header(response, b"content-length")
    return length.isdigit() and int(length) <= MOST_DISCARDED_BYTES and is_plain(response)


def is_plain(response: httpx2.Response) -> bool:
    """Whether the body travels as it is, so that its size on the line is its size."""
    return header(response, b"content-encoding") in (b"", b"identity")


def header(response: httpx2.Response, name: bytes) -> bytes:
    """The first header of this name, empty where there is none; `name` in lower case.

    On the path of every call: `response.headers` decodes all headers for each access.
    """
    for given, value in response.headers.raw:
        if given.lower() == name:
            return value
    return b""


async def drain(response: httpx2.Response) -> None:
    """Read a body that has no reader, so that its connection can be used again; stop where it is long."""
    size = 0
    async for chunk in response.aiter_raw():
        size += len(chunk)
        if size > MOST_DISCARDED_BYTES:
            return


def is_rejection(status: int, challenge: bytes) -> bool:
    """Whether an answer says that its request's access token is missing, invalid, or has too little scope."""
    return status == 401 or (status == 403 and b"insufficient_scope" in challenge)
