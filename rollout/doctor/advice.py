"""From what the probes found to a scope and its reason."""

from __future__ import annotations

from collections.abc import Collection

from gateway.config.models import ServerConfig
from gateway.leases.lease_dir import LEASE_DIR, names_lease_dir
from gateway.types import Scope
from rollout.doctor.report import Advice, Isolation, IsolationVerdict

SAFE = frozenset({IsolationVerdict.APART, IsolationVerdict.STATELESS})


def own_scope(config: ServerConfig) -> Scope:
    """The scope that keeps most apart: a process of its own where there can be one."""
    return Scope.SESSION if config.url is not None else Scope.PROCESS


def advise(config: ServerConfig, shared: Isolation | None, own: Isolation, *, modern: bool) -> Advice:
    """The weakest scope that is safe by what was found; where nothing is known, the strongest one.

    Args:
        shared: What was found under scope `shared`; None where the server cannot be shared.
        own: What was found under `own_scope`.
        modern: Whether the protocol is one without sessions.
    """
    strongest = own_scope(config)
    if own.finding is IsolationVerdict.LEAKS:
        return Advice(scope=None, reason=f"{_how_to_part(config)}; {own.evidence}")
    if shared is None:
        return Advice(scope=strongest, reason=f"it names {LEASE_DIR}, a directory for each lease; {own.evidence}")
    if shared.finding in SAFE:
        return Advice(scope=Scope.SHARED, reason=shared.evidence)
    if shared.finding is IsolationVerdict.LEAKS:
        proven = (
            ""
            if own.finding is IsolationVerdict.APART
            else f" (and nothing shows that this is enough{_of_files(config)})"
        )
        return Advice(scope=strongest, reason=f"shared, it leaks: {shared.evidence}{proven}")
    caution = "; without sessions in its protocol, that is a connection and no more" if modern and config.url else ""
    if own.finding in SAFE:
        return Advice(scope=strongest, reason=f"sharing is not shown to be safe: {shared.evidence}{caution}")
    reason = f"the strongest there is, not shown to be safe: {own.evidence}{caution}{_of_files(config)}"
    return Advice(scope=strongest, reason=reason)


def unproven(report_scope: str | None, isolation: Collection[Isolation], advice: Advice, config: ServerConfig) -> str:
    """Why it is not known that trajectories are kept apart; empty where it is, or where they surely are not.

    Args:
        report_scope: The scope that the file states; None where it states none, so that the advised one is used.
    """
    for scope in dict.fromkeys((advice.scope, report_scope)):
        found = finding_under(scope, isolation, config) if scope is not None else None
        if found is not None and found.finding is IsolationVerdict.UNKNOWN:
            return f"under {found.scope}: {found.evidence}"
    return ""


def finding_under(scope: str, isolation: Collection[Isolation], config: ServerConfig) -> Isolation | None:
    """What was found under a scope. A stdio server's sessions have a process each: one stands for the other."""
    if scope == Scope.SESSION and config.url is None:
        scope = Scope.PROCESS
    return next((found for found in isolation if found.scope == scope), None)


def _of_files(config: ServerConfig) -> str:
    """What processes of their own do not keep apart."""
    return f"; state in files needs {LEASE_DIR} as well" if config.url is None else ""


def _how_to_part(config: ServerConfig) -> str:
    if config.url is not None:
        return (
            "its sessions share state: start it with a command under scope: process, or let it key its state by the "
            'trajectory in _meta["mcp-rollout/trajectory"]'
        )
    if names_lease_dir(config):
        return f"its processes share state in spite of {LEASE_DIR}: find what else it writes to"
    return f"its processes share state, on disk or elsewhere: give it a directory for each lease with {LEASE_DIR}"
