"""What the doctor found out about one server: plain records, the same keys whatever happened."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Latency:
    """Seconds."""

    median_s: float
    p95_s: float
    n: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Latency | None:
        """None where nothing was measured. The 95th percentile of few values is the largest."""
        if not seconds:
            return None
        ordered = sorted(seconds)
        p95 = ordered[min(len(ordered) - 1, -(-len(ordered) * 95 // 100) - 1)]
        return cls(median_s=statistics.median(ordered), p95_s=p95, n=len(ordered))


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolReport:
    """One tool: what the chat template is given of it, against what the server sent."""

    tool: str
    name: str
    audience: str
    read_only: bool
    faithful: bool
    """Whether name, description and input schema are byte-equal in canonical form, after a trip through the lock."""
    difference: str
    """What differs; empty where nothing does."""
    tokens: int | None
    """Of its definition as JSON, under the tokenizer given."""
    described: bool
    """Whether it says what it is for."""
    hidden: tuple[str, ...] = ()
    """Characters in it that people do not see and models do."""


class IsolationVerdict(StrEnum):
    """How far two leases are apart under one scope."""

    LEAKS = "leaks"
    """What one lease did was seen in the other."""
    APART = "apart"
    """What one lease did was seen in that lease, and not in the other."""
    STATELESS = "stateless"
    """Nothing that was done showed in any later answer."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Isolation:
    """What two leases under one scope showed, and by what."""

    scope: str
    finding: IsolationVerdict
    evidence: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Determinism:
    """The same calls in fresh leases."""

    called: tuple[str, ...]
    differing: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Behaviour:
    """What happened when the server hung, or was killed. `well` is None where that was not tried."""

    well: bool | None
    said: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """The scope to train under; None where no scope is safe."""

    scope: str | None
    reason: str


@dataclass(kw_only=True, slots=True)
class ServerReport:
    """One server. `problems` make it unfit, `unknown` leaves that open; `notes` do neither."""

    server: str
    transport: str
    scope: str
    """As configured."""
    scope_given: bool
    """Whether the file says so, or it is the default."""
    protocol_version: str | None = None
    start: Latency | None = None
    call: Latency | None = None
    called: str | None = None
    """What `call` measured: a tool, or `tools/list` where no tool may be called."""
    tools: tuple[ToolReport, ...] = ()
    tokens: int | None = None
    """Of all the policy's tools together, as the chat template renders them."""
    malformed: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    """Tools that were not called: they may write, and nobody allowed it."""
    isolation: tuple[Isolation, ...] = ()
    determinism: Determinism | None = None
    hung: Behaviour | None = None
    killed: Behaviour | None = None
    advice: Advice | None = None
    problems: list[str] = field(default_factory=list[str])
    unknown: str = ""
    """Why nothing shows that the scope keeps trajectories apart; empty where something does."""
    to_know: tuple[str, ...] = ()
    """Options of the command line that would let the probes find out; any of them may be added."""
    notes: list[str] = field(default_factory=list[str])
    elapsed_s: float = 0.0

    @property
    def fit(self) -> bool | None:
        """None where nothing is wrong and nothing is shown either."""
        if self.problems:
            return False
        return None if self.unknown else True

    @property
    def era(self) -> str | None:
        """`modern` is the protocol without sessions."""
        if self.protocol_version is None:
            return None
        return "modern" if self.protocol_version >= "2026-07-28" else "handshake"

    def as_json(self) -> dict[str, Any]:
        return {"server": self.server, "fit": self.fit, "era": self.era, **asdict(self)}
