"""Who sends a request: the bearer of a token, and what it uses at the moment; and what is counted, for Prometheus."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field

import anyio

from mcp_rollout.gateway.serve.config import ServeConfig, TokenLimits
from mcp_rollout.mcp_wire.admission import LOOPBACK, NEEDS_TOKEN, Holders, Names, is_loopback, mark, origin_host


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
        bearers = max(len(config.tokens) + len(config.client_tokens), 1)
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
    is_client: bool = False
    """Whether it is an MCP client's, which gets no leases and no metrics."""
    digest: str = ""
    """The beginning of the token's: who it is in the names of trajectories, whatever the order of the tokens."""
    calls: int = 0
    """Requests under way."""
    waiting: int = 0
    """Leases that wait for a world."""
    sessions: int = 0
    """Of MCP clients."""
    kept_bytes: int = 0
    """Of outcomes that are kept."""
    body_bytes: int = 0
    """Of longer requests that arrive or are answered."""
    leases: anyio.CapacityLimiter = field(init=False)
    """Worlds that are leased."""
    worlds: anyio.CapacityLimiter = field(init=False)
    """Worlds of MCP clients."""

    def __post_init__(self) -> None:
        self.leases = anyio.CapacityLimiter(min(self.limits.leases, self.share.leases))
        self.worlds = anyio.CapacityLimiter(self.share.worlds)

    def check_calls(self) -> None:
        """Raise `Refused` where no further request may begin."""
        if self.calls >= self.limits.calls:
            raise Refused(429, f"{self.calls} calls are under way already (limits.calls)")

    @contextmanager
    def holding(self) -> Generator[Callable[[int], None]]:
        """What counts further bytes of one request, until the block ends; `Refused` where there is no room for them.

        A request alone always has room: it would be sent again for ever.
        """
        held = 0

        def hold(size: int) -> None:
            nonlocal held
            if held < self.body_bytes and self.body_bytes + size > self.limits.body_bytes:
                raise Refused(429, f"other requests hold {self.body_bytes - held} bytes (limits.body_bytes)")
            held, self.body_bytes = held + size, self.body_bytes + size

        try:
            yield hold
        finally:
            self.body_bytes -= held


class Admission:
    """Decides who may send requests, by token, Host and Origin.

    Args:
        places: How many worlds the gateway can lease at a time.
    """

    def __init__(self, config: ServeConfig, places: int) -> None:
        share = Share.of(places, config)
        tokens = [token.get_secret_value() for token in (*config.tokens, *config.client_tokens)]
        self.bearers = [
            Bearer(str(n), config.limits, share, is_client=n >= len(config.tokens), digest=mark(each))
            for n, each in enumerate(tokens)
        ]
        self._holders = Holders(dict(zip(tokens, self.bearers, strict=True)))
        if not tokens:
            self.bearers = [Bearer("", config.limits, share)]
        self._names = Names(config.host, config.allowed_hosts)
        self._serves_pages = is_loopback(config.host)
        """Of this machine."""

    def admit(self, headers: dict[bytes, bytes]) -> Bearer:
        """The bearer of a request with these headers, whose names are in lower case. Raises `Refused`."""
        if not self._names.has(headers.get(b"host", b"")):
            raise Refused(403, "Host is not allowed here: it must be an address or a name of this machine")
        origin = headers.get(b"origin")
        if origin is not None and not (self._serves_pages and origin_host(origin) in LOOPBACK):
            raise Refused(403, "Origin is not allowed here")
        bearer = self._holders.of(headers) if self._holders else self.bearers[0]
        if bearer is None:
            raise Refused(401, NEEDS_TOKEN)
        return bearer


CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


@dataclass(eq=False, slots=True)
class Counts:
    """Totals since the start."""

    calls: Counter[str] = field(default_factory=Counter[str])
    """Executed calls by outcome: `result`, `error_result`, or the code of a failure."""
    refused: Counter[int] = field(default_factory=Counter[int])
    """Requests that were refused, by HTTP status."""


def exposition(counts: Counts, bearers: Iterable[Bearer], *, leases: int, granted: int, freed: int) -> bytes:
    """All metrics as text: totals since the start end in `_total`, all others are of this moment."""
    numbers = {"leases": leases, "leases_granted_total": granted, "leases_freed_total": freed}
    numbers |= {f'calls_total{{outcome="{outcome}"}}': number for outcome, number in counts.calls.items()}
    numbers |= {f'refused_total{{status="{status}"}}': number for status, number in counts.refused.items()}
    for name in ("calls", "waiting", "kept_bytes", "body_bytes"):
        numbers |= {f'{name}{{bearer="{each.name}"}}': getattr(each, name) for each in bearers}
    return "".join(f"mcp_rollout_{name} {number}\n" for name, number in numbers.items()).encode()
