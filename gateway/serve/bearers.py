"""Who sends a request: the bearer of a token, and what it uses at the moment."""

from __future__ import annotations

import hashlib
import ipaddress
import math
import socket
from dataclasses import dataclass, field
from functools import cached_property
from urllib.parse import urlsplit

import anyio

from gateway.serve.config import LOOPBACK, ServeConfig, TokenLimits, is_loopback


class Refused(Exception):
    """A request that is not executed.

    Args:
        status: Of the HTTP answer: 401 and 403 for who asks, 429 for limits, 503 while draining.
    """

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status, self.problem = status, problem


@dataclass(frozen=True, slots=True)
class Share:
    """How many places one bearer may take at a time, so that no bearer can take all of them."""

    leases: float = math.inf
    worlds: float = math.inf
    sessions: float = math.inf

    @classmethod
    def of(cls, places: int, config: ServeConfig) -> Share:
        """Of a gateway's places: a trainer leaves one to each other bearer, and clients have an equal part each."""
        bearers = max(len(config.tokens), 1)
        return cls(
            leases=max(places - bearers + 1, 1),
            worlds=max(places // bearers, 1),
            sessions=max(config.client_sessions // bearers, 1),
        )


@dataclass(eq=False)
class Bearer:
    """One token's holder, and its use."""

    name: str
    """A number for metrics; the token itself is in no log."""
    limits: TokenLimits
    share: Share = field(default_factory=Share)
    calls: int = 0
    """Requests under way."""
    waiting: int = 0
    """Leases that wait for a world."""
    sessions: int = 0
    """Of MCP clients."""
    kept_bytes: int = 0
    """Of outcomes that are kept."""
    leases: anyio.CapacityLimiter = field(init=False)
    """Worlds that are leased."""
    worlds: anyio.CapacityLimiter = field(init=False)
    """Worlds of MCP clients."""

    def __post_init__(self) -> None:
        self.leases = anyio.CapacityLimiter(min(self.limits.leases, self.share.leases))
        self.worlds = anyio.CapacityLimiter(self.share.worlds)


class Admission:
    """Decides who may send requests, by token, Host and Origin.

    Args:
        places: How many worlds the gateway can lease at a time.
    """

    def __init__(self, config: ServeConfig, places: int) -> None:
        self._config = config
        share = Share.of(places, config)
        self._bearers = {
            _digest(token.get_secret_value().encode()): Bearer(str(number), config.limits, share)
            for number, token in enumerate(config.tokens)
        }
        self._anyone = Bearer("", config.limits, share)
        self._hosts: dict[bytes, bool] = {}

    @property
    def bearers(self) -> list[Bearer]:
        return list(self._bearers.values()) or [self._anyone]

    def admit(self, headers: dict[bytes, bytes]) -> Bearer:
        """The bearer of a request with these headers, whose names are in lower case. Raises `Refused`."""
        host = headers.get(b"host", b"")
        known = self._hosts.get(host)
        if known is None:
            known = self._is_own(host.decode("latin-1"))
            if len(self._hosts) < 256:  # of a client's making
                self._hosts[host] = known
        if not known:
            raise Refused(403, "Host is not allowed here: it must be an address or a name of this machine")
        if (origin := headers.get(b"origin")) is not None and not self._is_allowed(origin.decode("latin-1")):
            raise Refused(403, "Origin is not allowed here")
        if not self._bearers:
            return self._anyone
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        # Looked up by digest, so that the time of the comparison tells nothing about a token.
        bearer = self._bearers.get(_digest(token.strip())) if scheme.lower() == b"bearer" else None
        if bearer is None:
            raise Refused(401, "a bearer token of this server is needed")
        return bearer

    def _is_own(self, host: str) -> bool:
        """Whether a Host header names this machine. A page that has rebound its name's address cannot send one."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if is_loopback(self._config.host):
            return name in LOOPBACK or name in self._config.allowed_hosts
        return _is_address(name) or name in self._own_names or name in self._config.allowed_hosts

    @cached_property
    def _own_names(self) -> frozenset[str]:
        name = socket.gethostname()
        return LOOPBACK | {self._config.host, name, name.partition(".")[0]}

    def _is_allowed(self, origin: str) -> bool:
        try:
            return (urlsplit(origin).hostname or "") in LOOPBACK and is_loopback(self._config.host)
        except ValueError:
            return False


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
