"""Who a request is from, and whom it is for: bearer tokens by digest, and the names of a server."""

from __future__ import annotations

import hashlib
import ipaddress
import re
import socket
from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar
from urllib.parse import urlsplit

T = TypeVar("T")

LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))
SHORTEST_TOKEN = 16
"""Characters."""
NEEDS_TOKEN = "a bearer token of this server is needed"
_HOST = re.compile(r"(?:\[([\da-f.]*:[\da-f:.]*)\]|([\w.-]+))(?::(\d{1,5}))?", re.ASCII | re.IGNORECASE)
_MOST_KNOWN = 256
"""Values of headers, of clients' making, that are remembered."""


class Holders(Generic[T]):
    """Who holds which token. By digest, so that the time of a comparison tells nothing about a token."""

    def __init__(self, tokens: Mapping[str, T]) -> None:
        self._found = {_digest(token.encode()): holder for token, holder in tokens.items()}

    def __bool__(self) -> bool:
        return bool(self._found)

    def of(self, headers: Mapping[bytes, bytes]) -> T | None:
        """The holder of a request's token; names of headers in lower case."""
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        return self._found.get(_digest(token.strip())) if scheme.lower() == b"bearer" else None


class Names:
    """What clients may call a server that listens at `host`.

    At a loopback address these are itself and the loopback names; elsewhere any address and this machine's names, too.
    A page that has rebound its name's address sends another name.

    Args:
        more: Further names.
    """

    def __init__(self, host: str, more: Iterable[str] = ()) -> None:
        self._is_loopback = is_loopback(host)
        machine = socket.gethostname()
        own = (host,) if self._is_loopback else (host, machine, machine.partition(".")[0])
        self._names = LOOPBACK.union(own, more)
        self._known: dict[bytes, bool] = {}

    def has(self, host: bytes) -> bool:
        """Whether a Host header has one of them."""
        known = self._known.get(host)
        if known is None:
            known = self._has(named_host(host.decode("latin-1")))
            if len(self._known) < _MOST_KNOWN:
                self._known[host] = known
        return known

    def has_origin(self, origin: bytes) -> bool:
        """Whether an Origin header has one of them."""
        return self._has(origin_host(origin))

    def _has(self, name: str) -> bool:
        return name in self._names or (not self._is_loopback and is_address(name))


def named_host(header: str) -> str:
    """The host that a Host header names (RFC 9110, section 7.2), in lower case; empty if it is malformed."""
    found = _HOST.fullmatch(header)
    return "" if found is None or int(found[3] or 0) > 65535 else (found[1] or found[2]).lower()


def origin_host(header: bytes) -> str:
    """The host of a web page's Origin header (RFC 6454, section 6.2); empty for any other."""
    scheme, _, rest = header.decode("latin-1").partition("://")
    return named_host(rest) if scheme in ("http", "https") else ""


def host_of(url: str) -> str:
    """The host of a URL; empty if it has none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    return host in LOOPBACK or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def is_address(name: str) -> bool:
    """Whether a host is an IP address and not a name."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def mark(token: str) -> str:
    """What tells a token from others, and tells nothing about it."""
    return _digest(token.encode()).hex()[:12]


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
