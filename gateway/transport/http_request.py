"""Encode requests of an HTTP client as bytes, for connections outside the client's own pool."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import httpx2

from gateway.transport.http_client import Address, certificates, is_rejection, place

if TYPE_CHECKING:
    from gateway.transport.http_answer import HttpAnswer
    from gateway.transport.oauth import Authority

_OWN = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
_FRAMING = frozenset((b"content-length", b"transfer-encoding"))
_MOST_HEADS = 256


class Origin(NamedTuple):
    """Where connections go. `url` tells servers behind one host apart: none is given a connection of another."""

    url: str
    scheme: str
    host: str
    port: int


class Requests:
    """Builds requests with the client's configured headers and its cookies, the URL's secrets, and the access token.

    Args:
        client: Also sends what mcp sends, from which the protocol session's id is taken.
    """

    def __init__(self, client: httpx2.AsyncClient, address: Address, authority: Authority | None) -> None:
        self._client, self._address, self._authority = client, address, authority
        self.url = address.url
        self.reached = address.url
        """Where the last request arrived that was answered with success: there the server has redirected others to."""
        self.session_id = ""
        """Empty where the server gave none."""
        self._heads: dict[tuple[str, str, str | None, tuple[tuple[str, str], ...]], bytes] = {}
        client.event_hooks["request"].append(self._note_session)
        client.event_hooks["response"].append(self._note_place)

    async def _note_session(self, request: httpx2.Request) -> None:
        self.session_id = request.headers.get("mcp-session-id", self.session_id)

    async def _note_place(self, response: httpx2.Response) -> None:
        if response.request.method == "POST" and response.is_success:
            self.reached = str(response.request.url)

    @property
    def token(self) -> str | None:
        """The access token that a request would have now; None where it needs none, or there is none."""
        return self._authority.token if self._authority is not None else None

    def rejected(self, answer: HttpAnswer, token: str | None) -> bool:
        """Whether a server that wants access tokens rejected this one, and named a challenge."""
        if self._authority is None or not is_rejection(answer.status, answer.header(b"www-authenticate")):
            return False
        challenge = [(name, value) for name, value in answer.headers if name.lower() == b"www-authenticate"]
        request = httpx2.Request("POST", self.url)
        self._authority.reject(token, httpx2.Response(answer.status, headers=challenge, request=request))
        return bool(challenge)

    def encode(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> bytes | None:
        """A whole request; None where it needs an access token and there is none."""
        token = self.token
        if self._authority is not None and token is None:
            return None
        key = (method, url, token, tuple(headers.items()))
        head = self._heads.get(key)
        if head is None:
            if len(self._heads) >= _MOST_HEADS:  # arguments may be mirrored into headers
                self._heads.clear()
            head = self._heads[key] = self._head(method, url, headers, token)
        return head + b"\r\n" if body is None else b"%scontent-length: %d\r\n\r\n%s" % (head, len(body), body)

    def _head(self, method: str, url: str, headers: Mapping[str, str], token: str | None) -> bytes:
        session = {"mcp-session-id": self.session_id} if self.session_id else {}
        request = self._client.build_request(method, url, headers={**_OWN, **session, **headers})
        if token is not None:
            request.headers["authorization"] = f"Bearer {token}"
        self._address.complete(request)
        lines = [b"%s %s HTTP/1.1" % (method.encode(), request.url.raw_path)]
        lines += [b"%s: %s" % (name, value) for name, value in request.headers.raw if name.lower() not in _FRAMING]
        # httpx2's own connections refuse such a header; these bytes pass none of their checks.
        if any(ends in line for line in lines for ends in (b"\r", b"\n", b"\0")):
            raise ValueError("a header that is to be sent has a line end in it")
        return b"\r\n".join([*lines, b""])

    def keep_cookies(self, url: str, answer: HttpAnswer) -> None:
        """Take over the cookies that an answer sets, by which some load balancers find a session's server."""
        if not answer.header(b"set-cookie"):
            return
        request = httpx2.Request("POST", url)
        self._client.cookies.extract_cookies(httpx2.Response(answer.status, headers=answer.headers, request=request))
        self._heads.clear()

    def origin(self, url: str) -> Origin:
        return _origin(self.url, url)


@cache
def tls() -> ssl.SSLContext:
    """The certificates of every client, and HTTP/1.1 as the only protocol."""
    context = certificates()
    context.set_alpn_protocols(["http/1.1"])
    return context


@lru_cache(maxsize=1024)  # of a server's making, where it redirects
def _origin(server: str, url: str) -> Origin:
    return Origin(server, *place(httpx2.URL(url)))
