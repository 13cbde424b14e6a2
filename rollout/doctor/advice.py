"""The scope to train under and its reason, and the report's other conclusions, from what the probes found."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict

from mcp_rollout.gateway.config.models import ServerConfig
from mcp_rollout.gateway.leases.janitor import LEASE_DIR, names_lease_dir
from mcp_rollout.gateway.types import TRAJECTORY_META, Audience, Scope, ToolDefinition
from mcp_rollout.rollout.doctor.comparison import Reference
from mcp_rollout.rollout.doctor.permission import writes_to
from mcp_rollout.rollout.doctor.plan import MAY_WRITE, arguments_to_fill, suggested
from mcp_rollout.rollout.doctor.report import Advice, Isolation, IsolationVerdict, ServerReport, Verdict
from mcp_rollout.rollout.doctor.throwaway import EntryChanges, Throwaway
from mcp_rollout.rollout.doctor.verdict import (
    Visit,
    determinism,
    foreign_leak,
    isolation_of,
    leak_in,
    unanswered,
)

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
        shared: The verdict under scope `shared`; None if the server cannot be shared.
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
        report_scope: The scope that the file states; None if it states none and the advised one is used.
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


def shares_files(shared: Visit, own: Visit) -> bool:
    """Whether state seems to be in files, so that a directory for each lease is worth a try."""
    reference = Reference([shared.first, own.first])
    return bool(own.kept_files) or bool(leak_in(own, reference))


def leaks(visit: Visit, others: Sequence[Visit]) -> bool:
    """Whether one lease of a visit saw the other, with fresh leases of all visits to tell what is random."""
    return bool(leak_in(visit, Reference([visit.first, *(other.first for other in others)])))


def conclude(
    report: ServerReport,
    entry: ServerConfig,
    *,
    shared: Visit | None,
    own: Visit,
    directories: Sequence[Visit],
    more: Sequence[Visit],
    throwaway: Throwaway | None,
    unnamed: tuple[str, ...],
    offered: Mapping[str, ToolDefinition],
    declared: str,
) -> None:
    """Fill in isolation, advice, problems and notes.

    Args:
        shared: Under scope `shared`; None if the server cannot be shared.
        own: Under the strongest scope.
        directories: The same with a directory for each lease; twice where the first visit showed a leak.
        more: Further visits, for their fresh leases.
        throwaway: The server's throwaway place; without one every visit finds what the last one left.
        unnamed: What the user has to name before tools that may write are called.
        offered: The policy's tools by exposed name.
        declared: What declares that leases may share one process; empty where nothing does.
    """
    visits = [visit for visit in (shared, own, *directories, *more) if visit is not None]
    # A run that was cut short would hide what the others show later.
    whole = [visit.first for visit in visits if visit.has_all(visit.first)] or [visits[0].first]
    # Outside of a throwaway place, what one visit wrote is there for the next: only the first found it untouched.
    fresh = whole if throwaway is not None and throwaway.alone else whole[:1]
    reference = Reference(fresh, repeated=own.script.opening)
    found_own = isolation_of(own, reference)
    found_shared = None if shared is None else isolation_of(shared, reference)
    if shared is not None and found_shared is not None and (leak := foreign_leak(shared, own)):
        found_shared = Isolation(scope=shared.scope, verdict=IsolationVerdict.LEAKS, evidence=leak)
    report.isolation = tuple(found for found in (found_shared, found_own) if found is not None)
    report.determinism = determinism(reference)
    report.flaky += reference.flaky
    report.files = own.changed
    with_directory: tuple[Isolation, EntryChanges] | None = None
    # Not where a difference between two leases turned out to be random.
    if directories and throwaway is not None and (own.kept_files or found_own.verdict is IsolationVerdict.LEAKS):
        found = [isolation_of(visit, reference) for visit in directories]
        kept = next((each for each in found if each.verdict is not IsolationVerdict.LEAKS), found[0])
        if kept is not found[0]:
            report.flaky.append(f"with their own directories, once and not again: {found[0].evidence}")
        with_directory = kept, throwaway.own_directory(own.kept_files or own.changed)
    report.advice = advise(
        entry,
        found_shared,
        found_own,
        modern=report.era == "modern",
        declared=declared,
        files=() if shared is None else own.kept_files,
        with_directory=with_directory,
    )
    if report.advice.verdict is Verdict.LEAKS:
        report.problems.append(f"no scope keeps its trajectories apart: {report.advice.reason}")
    elif report.advice.verdict is Verdict.LEASE_DIR:
        report.problems.append(f"as the entry is, {report.advice.reason}")
    elif report.scope_given and _configured_leaks(report, entry):
        report.problems.append(f"scope: {report.scope} lets trajectories see each other; {report.advice.reason}")
    report.unknown = unproven(report.scope if report.scope_given else None, report.isolation, report.advice, entry)
    if report.unknown:
        report.to_know = _to_know(report.server, own, offered, unnamed or (throwaway.refused() if throwaway else ()))
        failed = [offered[name] for name in unanswered(own, reference) if name in offered]
        report.to_fill = {tool.name: arguments for tool in failed if (arguments := arguments_to_fill(tool))}
    report.notes += [f"not called, {message}" for message in own.script.refused]
    _add_notes(report)


def _configured_leaks(report: ServerReport, entry: ServerConfig) -> bool:
    found = verdict_under(report.scope, report.isolation, entry)
    return found is not None and found.verdict is IsolationVerdict.LEAKS


def _to_know(
    server: str, own: Visit, offered: Mapping[str, ToolDefinition], places: tuple[str, ...]
) -> tuple[str, ...]:
    """Options that may let the probes find out: calls that were not made, and permission for what was withheld."""
    script, outside = own.script, [name for name, reason in own.script.withheld.items() if reason != MAY_WRITE]
    wanted = [*outside, *(message.split(":", 1)[0] for message in script.refused)]
    tools = [offered[name] for name in dict.fromkeys(wanted) if name in offered]
    flags = [writes_to(places)] if places else []
    flags += ["--allow-outside"] if outside else []
    return (*suggested(server, tools), *flags)


def _add_notes(report: ServerReport) -> None:
    """Notes that are not about isolation."""
    report.notes += [f"left out, malformed: {message}" for message in report.malformed]
    report.notes += [f"{tool.name}: {message}" for tool in report.tools for message in tool.hidden]
    undescribed = [tool.name for tool in report.tools if tool.audience == Audience.POLICY and not tool.described]
    if undescribed:
        report.notes.append(f"without a description, so that the policy has to guess: {', '.join(undescribed)}")
