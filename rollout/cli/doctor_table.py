"""The doctor's reports for people: a table, and a paragraph for each server."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from mcp_rollout.rollout.cli.options import plain_table
from mcp_rollout.rollout.cli.output import Console
from mcp_rollout.rollout.doctor.report import Latency, ServerReport, Verdict

_MOST_NOTES = 8
_VERDICTS = {True: Text("yes", "green"), False: Text("no", "bold red"), None: Text("unknown", "yellow")}
_VIA = {"in_process": "here", "unknown": "-"}


def print_reports(reports: list[ServerReport], console: Console) -> None:
    table = plain_table()
    table.add_column("server", overflow="fold", min_width=6)
    for column in ("via", "protocol", "start", "call", "tools", "tokens", "scope", "fit"):
        right = column in ("start", "call", "tools", "tokens")
        table.add_column(column, justify="right" if right else "left", no_wrap=True)
    for report in reports:
        policy = [tool for tool in report.tools if tool.audience == "policy"]
        table.add_row(
            Text(report.server),
            _VIA.get(report.transport, report.transport),
            report.protocol_version or "-",
            _seconds(report.start),
            _seconds(report.call),
            str(len(policy)) if report.tools else "-",
            _tokens(report),
            (report.advice.scope or "none") if report.advice else "-",
            _VERDICTS[report.fit],
        )
    console.print(table)
    for report in reports:
        console.print()
        _print_server(report, console)


def _print_server(report: ServerReport, console: Console) -> None:
    console.print(Text(report.server, "bold"))
    grid = Table.grid(padding=(0, 1, 0, 2))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    grid.add_row("verdict", Text(report.verdict, "bold"))
    if report.touches:
        grid.add_row("touched", Text(report.touches))
    if report.refused:
        grid.add_row("refused", Text(f"it tried to reach {', '.join(report.refused)}"))
    for problem in report.problems:
        grid.add_row("unfit", Text(problem, "red"))
    if report.unknown:
        grid.add_row("fit", Text(f"unknown: {report.unknown}", "yellow"))
    if report.advice is not None and report.advice.scope is not None:
        reason = _reason(report, report.advice.reason)
        told = any(reason in problem for problem in report.problems)
        grid.add_row("scope", Text(report.advice.scope if told else f"{report.advice.scope}: {reason}"))
    if report.verdict is Verdict.LEASE_DIR:
        grid.add_row("remedy", Text("doctor FILE --fix COPY writes a copy of the file with these changes"))
    for found in report.isolation:
        grid.add_row("isolation", Text(f"under {found.scope}: {found.verdict}"))
    if report.start and report.call:
        grid.add_row("latency", Text(_latency(report)))
    if report.determinism is not None:
        grid.add_row("same call", Text(_determinism(report)))
    if report.withheld:
        grid.add_row("not called", Text("; ".join(f"{tool}: {reason}" for tool, reason in report.withheld.items())))
    for finding in report.flaky:
        grid.add_row("flaky", Text(finding, "yellow"))
    for note in report.notes[:_MOST_NOTES]:
        grid.add_row("note", Text(note))
    if len(report.notes) > _MOST_NOTES:
        grid.add_row("note", Text(f"{len(report.notes) - _MOST_NOTES} more with --json"))
    console.print(grid)
    if report.to_know:
        console.print(Text("  to know, add some of:", "yellow"))
    for option in report.to_know:
        # Never folded, so that it can be copied.
        console.print(Text(f"  {option}"), soft_wrap=True)
    if report.to_fill:
        console.print(Text("  made-up arguments failed; name a --call with values that mean something to", "yellow"))
        for tool, arguments in report.to_fill.items():
            console.print(Text(f"  {report.server}/{tool}: {', '.join(arguments)}"), soft_wrap=True)


def _reason(report: ServerReport, reason: str) -> str:
    """Why this scope, without what the row `fit` says already."""
    said = report.unknown.partition(": ")[2]
    return reason.replace(f": {said}", "") if said else reason


def _tokens(report: ServerReport) -> str:
    each = [tool.tokens for tool in report.tools if tool.tokens is not None and tool.audience == "policy"]
    total = report.tokens if report.tokens is not None else sum(each) if each else None
    return "-" if total is None else str(total)


def _seconds(latency: Latency | None) -> str:
    return "-" if latency is None else _duration(latency.median_s)


def _duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{seconds * 1000:.1f} ms"


def _latency(report: ServerReport) -> str:
    def line(what: str, latency: Latency) -> str:
        return f"{what} {_duration(latency.median_s)}, p95 {_duration(latency.p95_s)} of {latency.n}"

    assert report.start is not None and report.call is not None
    return f"{line('start', report.start)}; {line(f'call of {report.called}', report.call)}"


def _determinism(report: ServerReport) -> str:
    assert report.determinism is not None
    found = report.determinism
    if found.differing:
        return f"answers differ between fresh leases: {', '.join(found.differing)}"
    count = len(found.called)
    return f"{count} tool{'s' if count > 1 else ''} answered the same in fresh leases"
