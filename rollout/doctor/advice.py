"""The scope to train under, and its reason, from what the probes found."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict

from gateway.config.models import ServerConfig
from gateway.leases.janitor import LEASE_DIR, names_lease_dir
from gateway.types import TRAJECTORY_META, Scope
from rollout.doctor.report import Advice, Isolation, IsolationVerdict, Verdict
from rollout.doctor.throwaway import EntryChanges

_LEAKS, _APART = IsolationVerdict.LEAKS, IsolationVerdict.APART
_STATELESS, _UNKNOWN = IsolationVerdict.STATELESS, IsolationVerdict.UNKNOWN


def own_scope(config: ServerConfig) -> Scope:
    """The strongest scope: a process for each lease where the server is one of ours."""
    return Scope.SESSION if config.url is not None else Scope.PROCESS


def advise(
    config: ServerConfig,
    shared: Isolation | None,
    own: Isolation,
    *,
    modern: bool,
    declared: str,
    files: tuple[str, ...] = (),
    with_directory: tuple[Isolation, EntryChanges] | None = None,
) -> Advice:
    """Advise the strongest scope that the server needs. `shared` has to be declared besides: that no probe saw a leak
    is not evidence that there is none.

    Args:
        shared: The verdict under scope `shared`; None where the server cannot be shared.
        own: The verdict under `own_scope`.
        modern: Whether the protocol has no sessions.
        declared: What declares that leases may share one process; empty where nothing does.
        files: Files that the server wrote and that outlive a lease.
        with_directory: The verdict with a directory for each lease, and the changes to the entry for that.
    """
    strongest = own_scope(config)
    if with_directory is not None and with_directory[0].verdict in (_APART, _STATELESS):
        found, changes = with_directory
        shown = f" ({_few(files)})" if files else ""
        reason = f"its leases share files{shown}; with {changes}, {found.evidence}"
        return Advice(scope=strongest, reason=reason, verdict=Verdict.LEASE_DIR, changes=asdict(changes))
    if own.verdict is _LEAKS:
        return Advice(scope=None, reason=f"{_how_to_isolate(config)}; {own.evidence}", verdict=Verdict.LEAKS)
    if files:
        reason = f"the strongest there is, not shown to be safe: it wrote {_few(files)}, which a later lease may read"
        return Advice(scope=strongest, reason=reason, verdict=Verdict.UNKNOWN)
    unseen = shared is None or shared.verdict in (_APART, _STATELESS)
    if declared and shared is not None and unseen and own.verdict in (_APART, _STATELESS):
        return Advice(scope=Scope.SHARED, reason=f"{declared}; {shared.evidence}", verdict=Verdict.SHARE)
    if own.verdict is _APART:
        why = f"it names {LEASE_DIR}, a directory for each lease; {own.evidence}" if shared is None else own.evidence
        if shared is not None and shared.verdict is _LEAKS:
            why = f"shared, it leaks: {shared.evidence}"
        elif shared is not None and unseen:
            why = f"{own.evidence}; shared, no leak was seen either, but nothing declares that it keeps leases apart"
        return Advice(scope=strongest, reason=why, verdict=Verdict.OWN)
    if own.verdict is _STATELESS and unseen:
        reason = f"{own.evidence}; scope: shared is cheaper, if you know that it keeps nothing"
        return Advice(scope=strongest, reason=reason, verdict=Verdict.STATELESS)
    caution = "; its protocol has no sessions, so that this is only a connection" if modern and config.url else ""
    note = f"; state in files needs {LEASE_DIR} as well" if config.url is None and not names_lease_dir(config) else ""
    if shared is not None and shared.verdict is _LEAKS:
        reason = f"shared, it leaks: {shared.evidence} (and nothing shows that this is enough{note})"
        return Advice(scope=strongest, reason=reason, verdict=Verdict.UNKNOWN)
    reason = f"the strongest there is, not shown to be safe: {own.evidence}{caution}{note}"
    return Advice(scope=strongest, reason=reason, verdict=Verdict.UNKNOWN)


def unproven(report_scope: str | None, isolation: Collection[Isolation], advice: Advice, config: ServerConfig) -> str:
    """Explain why isolation is unknown under the advised or the stated scope; empty where the probes could tell.

    Args:
        report_scope: The scope that the file states; None where it states none and the advised one is used.
    """
    if advice.verdict is Verdict.UNKNOWN:
        found = verdict_under(str(advice.scope), isolation, config)
        return f"under {advice.scope}: {found.evidence if found and found.verdict is _UNKNOWN else advice.reason}"
    if report_scope is not None:
        found = verdict_under(report_scope, isolation, config)
        if found is not None and found.verdict is _UNKNOWN:
            return f"under {found.scope}: {found.evidence}"
    return ""


def verdict_under(scope: str, isolation: Collection[Isolation], config: ServerConfig) -> Isolation | None:
    """The verdict under a scope. Sessions of a stdio server have a process each, so that both scopes are the same."""
    if scope == Scope.SESSION and config.url is None:
        scope = Scope.PROCESS
    return next((found for found in isolation if found.scope == scope), None)


def _few(files: tuple[str, ...]) -> str:
    return ", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")


def _how_to_isolate(config: ServerConfig) -> str:
    if config.url is not None:
        keyed = f'key its state by the trajectory in _meta["{TRAJECTORY_META}"]'
        return f"its sessions share state: start it with a command under scope: process, or let it {keyed}"
    if names_lease_dir(config):
        return f"its processes share state in spite of {LEASE_DIR}: find what else it writes to"
    return f"its processes share state, on disk or elsewhere: give it a directory for each lease with {LEASE_DIR}"
