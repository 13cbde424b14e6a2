"""Where requests over HTTP go: addresses without their secrets, redirects, and the certificates that are trusted."""

from __future__ import annotations

import base64
import ssl
from functools import cache, lru_cache
from typing import NamedTuple

import anyio.to_thread
import httpx2

from mcp_rollout.gateway.transport.delivery import Broke
from mcp_rollout.gateway.transport.http_answer import HttpFault

_PORTS = {"http": 80, "https": 443}
_SAME_METHOD, _ANY_REDIRECT = frozenset((307, 308)), frozenset((301, 302, 303, 307, 308))


@cache
def certificates() -> ssl.SSLContext:
    """The trusted certificates. Loading them costs some 50 ms and 800 KB; one set serves every client."""
    return httpx2.create_ssl_context()


async def load_certificates() -> None:
    """Load the trusted certificates in a thread, before a client is made: the event loop is not held meanwhile."""
    if not certificates.cache_info().currsize:
        await anyio.to_thread.run_sync(certificates)


@cache
def tls() -> ssl.SSLContext:
    """The certificates of every client, and HTTP/1.1 as the only protocol."""
    context = certificates()
    context.set_alpn_protocols(["http/1.1"])
    return context


class Proxy:
    """The proxy of an origin. `label` names it in messages, without its user and password."""

    def __init__(self, url: str) -> None:
        given = httpx2.Proxy(url)
        self.scheme, self.host, self.port = place(given.url)
        self.label = f"the proxy {self.scheme}://{given.url.netloc.decode()}"
        encoded = base64.b64encode(b":".join(given.raw_auth or ())).decode()
        self.headers = {"proxy-authorization": f"Basic {encoded}"} if encoded else {}


@lru_cache(maxsize=64)
def proxy_at(url: str) -> Proxy:
    """A proxy by its address. Raises `HttpFault` where that is not one of an HTTP proxy."""
    try:
        if (found := Proxy(url)).scheme in _PORTS:
            return found
    except (httpx2.InvalidURL, ValueError):
        pass  # whose message quotes the password
    raise HttpFault(Broke.CONNECT, "HTTP_PROXY, HTTPS_PROXY or ALL_PROXY does not name an HTTP proxy")


class Origin(NamedTuple):
    """Where connections go. `url` tells servers behind one host apart: none is given a connection of another."""

    url: str
    scheme: str
    host: str
    port: int
    proxy: Proxy | None = None
    """Through which it is reached; None if directly."""


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
    found = _joined(url, location.decode("latin-1"))
    if found is None or found.userinfo:
        return None
    before, after = place(given), place(found)
    upgraded = before == ("http", given.host, 80) and after == ("https", given.host, 443)
    return str(found.copy_with(fragment=None)) if before == after or upgraded else None


def same_origin(url: str, reference: str) -> str | None:
    """The URL that a reference at `url` names; None if that is on another origin, or is not one."""
    found = _joined(url, reference)
    return str(found) if found is not None and place(found) == place(httpx2.URL(url)) else None


def _joined(url: str, reference: str) -> httpx2.URL | None:
    try:
        return httpx2.URL(url).join(reference)
    except (httpx2.InvalidURL, ValueError):
        return None
