"""The scope to train under, and its reason, from what the probes found."""

from __future__ import annotations

from collections.abc import Collection

from gateway.config.models import ServerConfig
from gateway.leases.lease_dir import LEASE_DIR, names_lease_dir
from gateway.types import TRAJECTORY_META, Scope
from rollout.doctor.report import Advice, Isolation, IsolationVerdict

SAFE = frozenset({IsolationVerdict.APART, IsolationVerdict.STATELESS})


def own_scope(config: ServerConfig) -> Scope:
    """The strongest scope: a process for each lease where the server is one of ours."""
    return Scope.SESSION if config.url is not None else Scope.PROCESS


def advise(config: ServerConfig, shared: Isolation | None, own: Isolation, *, modern: bool) -> Advice:
    """Advise the weakest scope that the probes show to be safe, or the strongest where they show nothing.

    Args:
        shared: The finding under scope `shared`; None where the server cannot be shared.
        own: The finding under `own_scope`.
        modern: Whether the protocol has no sessions.
    """
    strongest = own_scope(config)
    if own.finding is IsolationVerdict.LEAKS:
        return Advice(scope=None, reason=f"{_how_to_isolate(config)}; {own.evidence}")
    if shared is None:
        return Advice(scope=strongest, reason=f"it names {LEASE_DIR}, a directory for each lease; {own.evidence}")
    if shared.finding in SAFE:
        return Advice(scope=Scope.SHARED, reason=shared.evidence)
    if shared.finding is IsolationVerdict.LEAKS:
        doubt = f" (and nothing shows that this is enough{_files(config)})"
        doubt = "" if own.finding is IsolationVerdict.APART else doubt
        return Advice(scope=strongest, reason=f"shared, it leaks: {shared.evidence}{doubt}")
    caution = "; its protocol has no sessions, so that this is only a connection" if modern and config.url else ""
    if own.finding in SAFE:
        return Advice(scope=strongest, reason=f"sharing is not shown to be safe: {shared.evidence}{caution}")
    reason = f"the strongest there is, not shown to be safe: {own.evidence}{caution}{_files(config)}"
    return Advice(scope=strongest, reason=reason)


def unproven(report_scope: str | None, isolation: Collection[Isolation], advice: Advice, config: ServerConfig) -> str:
    """Explain why isolation is unknown under the advised or the stated scope; empty where the probes could tell.

    Args:
        report_scope: The scope that the file states; None where it states none and the advised one is used.
    """
    for scope in dict.fromkeys((advice.scope, report_scope)):
        found = finding_under(scope, isolation, config) if scope is not None else None
        if found is not None and found.finding is IsolationVerdict.UNKNOWN:
            return f"under {found.scope}: {found.evidence}"
    return ""


def finding_under(scope: str, isolation: Collection[Isolation], config: ServerConfig) -> Isolation | None:
    """The finding under a scope. Sessions of a stdio server have a process each, so that both scopes are the same."""
    if scope == Scope.SESSION and config.url is None:
        scope = Scope.PROCESS
    return next((found for found in isolation if found.scope == scope), None)


def _files(config: ServerConfig) -> str:
    """A note on files, which a process for each lease does not isolate."""
    return f"; state in files needs {LEASE_DIR} as well" if config.url is None else ""


def _how_to_isolate(config: ServerConfig) -> str:
    if config.url is not None:
        keyed = f'key its state by the trajectory in _meta["{TRAJECTORY_META}"]'
        return f"its sessions share state: start it with a command under scope: process, or let it {keyed}"
    if names_lease_dir(config):
        return f"its processes share state in spite of {LEASE_DIR}: find what else it writes to"
    return f"its processes share state, on disk or elsewhere: give it a directory for each lease with {LEASE_DIR}"
