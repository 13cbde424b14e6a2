"""The doctor's report on one server: plain records, with the same keys for every outcome."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from mcp_rollout.rollout.trace.stats import quantile


@dataclass(frozen=True, kw_only=True, slots=True)
class Latency:
    """Seconds."""

    median_s: float
    p95_s: float
    n: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Latency | None:
        """Summarise measurements, None without any. The 95th percentile of few values is the largest."""
        if not seconds:
            return None
        ordered = sorted(seconds)
        return cls(median_s=statistics.median(ordered), p95_s=quantile(ordered, 0.95), n=len(ordered))


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolReport:
    """One tool as the policy is shown it."""

    tool: str
    name: str
    audience: str
    read_only: bool
    tokens: int | None
    """Tokens of its definition as JSON; None without a tokenizer."""
    described: bool
    """Whether it has a description."""
    hidden: tuple[str, ...] = ()
    """Characters of its definition that people do not see and models do."""


class IsolationVerdict(StrEnum):
    """What the probes saw of the isolation of leases under one scope."""

    LEAKS = "leaks"
    """One lease saw what the other did."""
    APART = "no leak seen"
    """A lease saw what it did itself, and no other did."""
    STATELESS = "no state seen"
    """No call changed a later answer."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Isolation:
    """The verdict on one scope."""

    scope: str
    verdict: IsolationVerdict
    evidence: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Determinism:
    """The same calls in fresh leases: the tools that were called, and those whose answers differed."""

    called: tuple[str, ...]
    differing: tuple[str, ...]


class Verdict(StrEnum):
    """What the examination found out, in a few words."""

    SHARE = "no leak seen when shared"
    """Something declares that leases may share one process, and no probe saw one lease in another."""
    STATELESS = "stateless as far as seen"
    """Every tool answered, and no later answer depended on an earlier call."""
    OWN = "own scope"
    """With a process, or a session, for each lease no probe saw a leak; shared there is one, or nothing declares it."""
    LEASE_DIR = "needs ${lease.dir}"
    """State is in files, and a directory for each lease keeps it apart."""
    LEAKS = "leaks in every scope"
    UNKNOWN = "unknown"
    UNFIT = "unfit"
    """It does not start, has no tools, or fails in another way."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """The scope to train under; None if no scope is safe."""

    scope: str | None
    reason: str
    verdict: Verdict
    changes: dict[str, Any] | None = None
    """Keys to add to the entry: under `args` (by position), `env` and `cwd`, and under `data` what each
    lease's directory must contain; None for no change."""


@dataclass(kw_only=True, slots=True)
class ServerReport:
    """One server. `problems` make it unfit, `unknown` leaves its fitness open, `notes` affect neither."""

    server: str
    transport: str
    scope: str
    """As configured."""
    scope_given: bool
    """Whether the file states the scope; otherwise it is the default."""
    protocol_version: str | None = None
    start: Latency | None = None
    call: Latency | None = None
    called: str | None = None
    """What `call` measured: a tool, or `tools/list` where no tool may be called."""
    tools: tuple[ToolReport, ...] = ()
    tokens: int | None = None
    """Tokens of all the policy's tools together, as the chat template renders them."""
    malformed: tuple[str, ...] = ()
    withheld: dict[str, str] = field(default_factory=dict[str, str])
    """Tools that were not called, each with the reason."""
    flaky: list[str] = field(default_factory=list[str])
    """What went well in one try and not in another."""
    files: tuple[str, ...] = ()
    """Files that the probes made the server write, below the throwaway directory."""
    isolation: tuple[Isolation, ...] = ()
    determinism: Determinism | None = None
    advice: Advice | None = None
    problems: list[str] = field(default_factory=list[str])
    unknown: str = ""
    """Why the probes cannot tell whether the scope isolates trajectories; empty where they can."""
    to_know: tuple[str, ...] = ()
    """Options of the command line, each of which may let the probes find out."""
    to_fill: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Tools that returned an error to each probe, with the arguments that need a meaningful value in a `--call`."""
    touches: str = ""
    """What of the user's the examination read, reached and wrote to; said before anything was called."""
    refused: tuple[str, ...] = ()
    """Addresses that the server tried to reach and was not let reach."""
    notes: list[str] = field(default_factory=list[str])
    elapsed_s: float = 0.0

    @property
    def fit(self) -> bool | None:
        """None if the probes found no problem and cannot tell whether trajectories are isolated."""
        if self.problems:
            return False
        return None if self.unknown else True

    @property
    def verdict(self) -> Verdict:
        if self.advice is None or (self.problems and self.advice.verdict not in (Verdict.LEASE_DIR, Verdict.LEAKS)):
            return Verdict.UNFIT
        return self.advice.verdict

    @property
    def era(self) -> str | None:
        """`modern` for the protocol without sessions, else `handshake`."""
        if self.protocol_version is None:
            return None
        return "modern" if self.protocol_version >= "2026-07-28" else "handshake"

    def as_json(self) -> dict[str, Any]:
        return {"server": self.server, "fit": self.fit, "verdict": self.verdict, "era": self.era, **asdict(self)}
