"""Who may send requests over HTTP: by token, and by the headers Host and Origin."""

from __future__ import annotations

import hashlib
import ipaddress
import socket
from collections.abc import Mapping, MutableMapping
from typing import Any
from urllib.parse import urlsplit

TOKEN, HOSTS = "MCP_SERVER_TOKEN", "MCP_SERVER_HOSTS"
"""Variables of the environment: the bearer token, and further names by which clients may address the server. Either may
have several values with spaces between them."""
ADMITTED = "kit.admitted"
"""In a request's state: what notes that its connection has shown a token."""
_LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))
_SHORTEST_TOKEN = 16


class Door:
    """Admits requests to a server that listens at `host`.

    Args:
        variables: Of the environment. The token is removed from them: programs that the server starts do not need it.
        authorizes: Whether the server has an authorization of its own.

    Raises:
        ValueError: other machines reach the address, and there is no token; or the token is too short.
    """

    def __init__(self, host: str, variables: MutableMapping[str, str], *, authorizes: bool = False) -> None:
        tokens = variables.pop(TOKEN, "").split()
        self._is_loopback = _is_loopback(host)
        if not tokens and not self._is_loopback and not authorizes:
            raise ValueError(
                f"{host} is reachable from other machines: {TOKEN} must hold a token (openssl rand -hex 32)"
            )
        if any(len(token) < _SHORTEST_TOKEN for token in tokens):
            raise ValueError(f"{TOKEN}: shorter than {_SHORTEST_TOKEN} characters (openssl rand -hex 32)")
        # By digest, so that the time of a comparison tells nothing about a token.
        self._tokens = frozenset(hashlib.sha256(token.encode()).digest() for token in tokens)
        own = socket.gethostname()
        self._names = _LOOPBACK | {host, own, own.partition(".")[0], *variables.get(HOSTS, "").split()}

    def refusal(self, headers: Mapping[bytes, bytes]) -> tuple[int, bytes] | None:
        """Status and text for a request that is not admitted; names in lower case."""
        # At a loopback address the SDK's application checks both.
        if not self._is_loopback:
            if not self._is_own(b"//" + headers.get(b"host", b"")):
                return 421, b"Invalid Host header"
            if b"origin" in headers and not self._is_own(headers[b"origin"]):
                return 403, b"Invalid Origin header"
        if not self._tokens:
            return None
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"bearer" and hashlib.sha256(token.strip()).digest() in self._tokens:
            return None
        return 401, b"a bearer token of this server is needed"

    def _is_own(self, url: bytes) -> bool:
        """Whether a URL names this machine. A page that has rebound its name's address sends another name."""
        try:
            name = urlsplit(url.decode("latin-1")).hostname or ""
        except ValueError:
            return False
        return name in self._names or _is_address(name)

    def guarding(self, app: Any) -> Any:
        """The ASGI application, for requests that are admitted."""

        async def guarded(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                refused = self.refusal(dict(scope["headers"]))
                if refused is not None:
                    status, text = refused
                    await send({"type": "http.response.start", "status": status, "headers": headers_of(refused)})
                    await send({"type": "http.response.body", "body": text})
                    return
                scope["state"].pop(ADMITTED)()
            await app(scope, receive, send)

        return guarded


def headers_of(refused: tuple[int, bytes]) -> list[tuple[bytes, bytes]]:
    """The headers of the answer to a request that is not admitted, which ends its connection."""
    status, text = refused
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(text)), (b"connection", b"close")]
    # RFC 9110, section 15.5.2: a 401 names the scheme that would be accepted.
    return [*headers, (b"www-authenticate", b"Bearer")] if status == 401 else headers


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return host in _LOOPBACK or (_is_address(host) and ipaddress.ip_address(host).is_loopback)
