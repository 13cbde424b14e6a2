"""What was seen under two scopes, held against each other."""

from __future__ import annotations

from dataclasses import dataclass

from rollout.doctor.isolation import Observation
from rollout.doctor.plan import Plan
from rollout.doctor.report import Determinism, Isolation, IsolationVerdict
from rollout.doctor.verdict import counted, differs_between, mixed_up, survives


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen under one scope; no observation where it took too long."""

    plan: Plan
    observation: Observation | None
    isolation: Isolation


def own_finding(shared: Seen | None, own: Seen) -> Isolation:
    """What was found under the scope that keeps most apart, what earlier leases left behind included."""
    found = own.isolation
    if shared is None or found.finding is IsolationVerdict.LEAKS or not (shared.observation and own.observation):
        return found
    if left := survives(shared.observation, own.observation, own.plan):
        return Isolation(scope=found.scope, finding=IsolationVerdict.LEAKS, evidence=left)
    if found.finding is IsolationVerdict.STATELESS and counted(shared.observation, own.observation, own.plan):
        # What it has is its own: that is not to have nothing.
        evidence = "what counts on when shared began anew in each lease"
        return Isolation(scope=found.scope, finding=IsolationVerdict.APART, evidence=evidence)
    return found


def shared_finding(shared: Seen | None, own: Seen) -> Isolation | None:
    """What was found under scope `shared`, with what only the comparison shows; None where it cannot be shared."""
    if shared is None or shared.isolation.finding is IsolationVerdict.LEAKS:
        return shared.isolation if shared else None
    if shared.observation and own.observation:
        mixed = mixed_up(shared.observation, own.observation, own.plan)
        mixed = mixed or counted(shared.observation, own.observation, own.plan)
        if mixed:
            return Isolation(scope=shared.isolation.scope, finding=IsolationVerdict.LEAKS, evidence=mixed)
    depends = ""
    if shared.observation and own.observation and shared.isolation.finding is IsolationVerdict.STATELESS:
        depends = differs_between(shared.observation, own.observation, own.plan)
    if not depends:
        return shared.isolation
    return Isolation(scope=shared.isolation.scope, finding=IsolationVerdict.UNKNOWN, evidence=depends)


def determinism(shared: Seen | None, own: Seen) -> Determinism | None:
    """Reads of two fresh leases; and writes, where there were two leases in which nothing had been written."""
    if own.observation is None:
        return None
    first, second = own.observation.read_in_a, own.observation.read_in_b
    pairs = [(call.tool, a, b[1]) for call, a, b in zip(own.plan.reads, first, second, strict=True)]
    if shared is not None and shared.observation is not None:
        pairs += [
            (call.tool, here[0], there[0])
            for call, here, there in zip(
                own.plan.writes, shared.observation.written_in_a, own.observation.written_in_a, strict=True
            )
        ]
    # An error is no answer that could differ.
    pairs = [(tool, one, other) for tool, one, other in pairs if one.well and other.well]
    if not pairs:
        return None
    differing = dict.fromkeys(tool for tool, one, other in pairs if one != other)
    return Determinism(called=tuple(dict.fromkeys(tool for tool, _, _ in pairs)), differing=tuple(differing))
