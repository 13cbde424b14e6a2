"""Encode the requests of one connection as bytes: its headers and cookies, its protocol session, the URL's secrets."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from http.cookiejar import CookieJar
from typing import Any

import httpx2
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER

from gateway.config.models import ServerConfig
from gateway.transport.delivery import Broke
from gateway.transport.http_address import Address, Origin, place
from gateway.transport.http_answer import HttpAnswer, HttpFault

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

    def __init__(self, config: ServerConfig) -> None:
        assert config.url is not None
        self._address = Address(config.url)
        self._given = httpx2.Headers({"user-agent": f"python-httpx2/{httpx2.__version__}"})
        self._given.update({**config.headers})
        self._given.update(_OWN)
        self.cookies = httpx2.Cookies(BoundedCookies())
        self.url = self._address.url
        self._session: dict[str, str] = {}
        self._heads: dict[tuple[str, str, str | None, tuple[tuple[str, str], ...]], bytes] = {}

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

    def encode(self, method: str, url: str, headers: Mapping[str, str], token: str | None, body: bytes | None) -> bytes:
        """A whole request. Raises `HttpFault` where a part of it cannot be sent.

        Args:
            headers: Of this request alone.
            token: The access token.
        """
        key = (method, url, token, tuple(headers.items()))
        head = self._heads.get(key)
        if head is None:
            if len(self._heads) >= _MOST_HEADS:  # arguments may be mirrored into headers
                self._heads.clear()
            try:
                head = self._heads[key] = self._head(method, url, headers, token)
            except (ValueError, httpx2.InvalidURL) as error:  # neither of which quotes a header
                raise HttpFault(Broke.CONTENT, f"the request cannot be sent: {type(error).__name__}") from None
        return head + b"\r\n" if body is None else b"%scontent-length: %d\r\n\r\n%s" % (head, len(body), body)

    def _head(self, method: str, url: str, headers: Mapping[str, str], token: str | None) -> bytes:
        request = httpx2.Request(method, url, headers=self._given)
        request.headers.update({**self._session, **headers})
        self.cookies.set_cookie_header(request)
        if token is not None:
            request.headers["authorization"] = f"Bearer {token}"
        self._address.complete(request)
        lines = [b"%s %s HTTP/1.1" % (method.encode(), request.url.raw_path)]
        lines += [b"%s: %s" % (name, value) for name, value in request.headers.raw if name.lower() not in _FRAMING]
        # An HTTP client refuses such a header; these bytes pass none of its checks.
        if any(ends in line for line in lines for ends in (b"\r", b"\n", b"\0")):
            raise ValueError("a header that is to be sent has a line end in it")
        return b"\r\n".join([*lines, b""])

    def keep_cookies(self, url: str, answer: HttpAnswer) -> None:
        """Take over the cookies that an answer sets, by which some load balancers find a session's server."""
        if not answer.header(b"set-cookie"):
            return
        request = httpx2.Request("POST", url)
        self.cookies.extract_cookies(httpx2.Response(answer.status, headers=answer.headers, request=request))
        self._heads.clear()

    def origin(self, url: str) -> Origin:
        """Where a request to this URL goes."""
        return _origin(self.url, url)


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


@lru_cache(maxsize=1024)  # of a server's making, where it redirects
def _origin(server: str, url: str) -> Origin:
    return Origin(server, *place(httpx2.URL(url)))
