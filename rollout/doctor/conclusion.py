"""The report's conclusions, from what was seen under all scopes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.config.models import ServerConfig
from gateway.types import Audience, ToolDefinition
from rollout.doctor.advice import advise, unproven, verdict_under
from rollout.doctor.comparison import Reference
from rollout.doctor.plan import arguments_to_fill, suggested
from rollout.doctor.report import Isolation, IsolationVerdict, ServerReport, Verdict
from rollout.doctor.throwaway import EntryChanges, Throwaway
from rollout.doctor.verdict import Visit, determinism, drawn_once, foreign_leak, isolation_of, leak_in, unanswered


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
    offered: Mapping[str, ToolDefinition],
    declared: str,
) -> None:
    """Fill in isolation, advice, problems and notes.

    Args:
        shared: Under scope `shared`; None where the server cannot be shared.
        own: Under the strongest scope.
        directories: The same with a directory for each lease; twice where the first visit showed a leak.
        more: Further visits, for their fresh leases.
        throwaway: The server's throwaway place; without one every visit finds what the last one left.
        offered: The policy's tools by exposed name.
        declared: What declares that leases may share one process; empty where nothing does.
    """
    visits = [visit for visit in (shared, own, *directories, *more) if visit is not None]
    # A run that was cut short would hide what the others show later.
    whole = [visit.first for visit in visits if visit.has_all(visit.first)] or [visits[0].first]
    # Without a throwaway place, what one visit wrote is there for the next: only the first found the server untouched.
    fresh = whole if throwaway is not None else whole[:1]
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
        report.to_know = _to_know(report.server, own, offered, writes=throwaway is not None)
        failed = [offered[name] for name in unanswered(own, reference) if name in offered]
        report.to_fill = {tool.name: arguments for tool in failed if (arguments := arguments_to_fill(tool))}
    report.notes += [f"not called, {message}" for message in own.script.refused]
    if shared is not None and (drawn := drawn_once(shared, reference)):
        report.notes.append(f"{drawn} answered all leases of one process alike, and other processes differently")
    _add_faults(report)


def _configured_leaks(report: ServerReport, entry: ServerConfig) -> bool:
    found = verdict_under(report.scope, report.isolation, entry)
    return found is not None and found.verdict is IsolationVerdict.LEAKS


def _to_know(server: str, own: Visit, offered: Mapping[str, ToolDefinition], *, writes: bool) -> tuple[str, ...]:
    """Options that may let the probes find out: calls that were not made, and permission for what was withheld."""
    script = own.script
    wanted = [*script.withheld, *(message.split(":", 1)[0] for message in script.refused)]
    tools = [offered[name] for name in dict.fromkeys(wanted) if name in offered]
    reasons = set(script.withheld.values())
    flags = ["--allow-writes"] if not writes and "it may write" in reasons else []
    flags += ["--allow-outside"] if reasons - {"it may write"} else []
    return (*suggested(server, tools), *flags)


def _add_faults(report: ServerReport) -> None:
    """Problems and notes that are not about isolation."""
    unfaithful = [tool for tool in report.tools if not tool.faithful]
    report.problems += [f"{tool.name} is not shown as it was sent: {tool.difference}" for tool in unfaithful]
    report.problems += [f"hung: {report.hung.said}"] if report.hung and report.hung.well is False else []
    report.problems += [f"killed: {report.killed.said}"] if report.killed and report.killed.well is False else []
    report.notes += [f"left out, malformed: {message}" for message in report.malformed]
    report.notes += [f"{tool.name}: {message}" for tool in report.tools for message in tool.hidden]
    undescribed = [tool.name for tool in report.tools if tool.audience == Audience.POLICY and not tool.described]
    if undescribed:
        report.notes.append(f"without a description, so that the policy has to guess: {', '.join(undescribed)}")
