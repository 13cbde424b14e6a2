"""`doctor`: test whether servers can be trained against, and under which scope."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import anyio
import typer

from mcp_rollout.gateway.errors import ConfigError, faults_of
from mcp_rollout.rollout.cli.doctor_table import print_reports
from mcp_rollout.rollout.cli.option_models import with_option_models
from mcp_rollout.rollout.cli.options import (
    INTERRUPTED,
    AsJson,
    Counting,
    EnvironmentsDir,
    File,
    Target,
    load_target,
    print_json,
)
from mcp_rollout.rollout.cli.output import Console
from mcp_rollout.rollout.doctor.call_option import check_tools, parse_call_option
from mcp_rollout.rollout.doctor.examination import Options
from mcp_rollout.rollout.doctor.examine import examine
from mcp_rollout.rollout.doctor.fix import write_fixed
from mcp_rollout.rollout.doctor.report import ServerReport

UNFIT, UNKNOWN = 1, 3
"""Exit statuses. 2 is for bad input, as in every command."""

app = typer.Typer(add_completion=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Probes:
    """What probes may call, and may write to."""

    call: Annotated[
        list[str] | None, typer.Option(metavar="[SERVER/]TOOL=JSON", help="A call that probes may make.")
    ] = None
    writes_to: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH|ADDRESS", help="Probes may write to this path, url or host:port; without, to copies alone."
        ),
    ] = None
    allow_outside: Annotated[
        bool, typer.Option("--allow-outside", help="Probes may call tools that reach the network or other processes.")
    ] = False

    @property
    def options(self) -> Options:
        return Options(writes_to=tuple(self.writes_to or ()), allow_outside=self.allow_outside)


@app.command()
@with_option_models
def doctor(
    file: File,
    counting: Counting,
    probes: Probes,
    server: Annotated[list[str] | None, typer.Option(help="Examine this server only; may be repeated.")] = None,
    fix: Annotated[
        Path | None,
        typer.Option(metavar="COPY", help="Write a copy of FILE with scopes, ${lease.dir} and timeouts as found."),
    ] = None,
    at_a_time: Annotated[int, typer.Option(min=1, help="Servers examined at a time; 1 for exact latencies.")] = 4,
    as_json: AsJson = False,
    environments_dir: EnvironmentsDir = None,
) -> int:
    """Find out whether servers can be trained against, and under which scope.

    Stdio servers are probed on copies of their data, in processes that can neither write nor connect elsewhere. Exit
    status 0 where all can, 1 where one cannot, 3 where the probes could not find out; the report then lists the options
    to add.
    """
    options = replace(probes.options, counter=counting.template(), at_a_time=at_a_time)
    target = load_target(file, environments_dir, all_valid=False)
    reports, interrupted = reported(target, options, servers=server, calls=probes.call, fix=fix, as_json=as_json)
    fit = fitness(reports)
    if interrupted:
        return INTERRUPTED
    return 0 if fit else UNKNOWN if fit is None else UNFIT


def fitness(reports: Iterable[ServerReport]) -> bool | None:
    """Whether all servers are fit; None where some may be and none is unfit."""
    fits = {report.fit for report in reports}
    return False if False in fits else None if None in fits else True


def reported(
    target: Target,
    options: Options,
    *,
    servers: list[str] | None = None,
    calls: list[str] | None = None,
    fix: Path | None = None,
    as_json: bool = False,
) -> tuple[list[ServerReport], bool]:
    """Examine servers, print the reports and write the fixed copy; returns the reports, and whether it was interrupted.

    Raises:
        ConfigError: an option names no server or tool, or the copy cannot be written.
    """
    chosen = _chosen(target, servers or [])
    servers = [name for name in target.config.servers if name in chosen]
    options = replace(
        options,
        call_options=tuple(parse_call_option(text, chosen) for text in calls or ()),
        key=target.key,
    )
    if fix is not None and target.environment is not None:
        raise ConfigError(
            "an environment is not written", file=target.source, key="--fix", remedy="give a servers file"
        )
    finished: dict[str, ServerReport] = {}
    interrupted = False
    try:
        anyio.run(partial(examine, target.config, options, only=servers, on_progress=_show, finished=finished))
    except KeyboardInterrupt:
        interrupted = True
        left = ", ".join(name for name in servers if name not in finished)
        typer.echo(f"interrupted; without a report: {left} (--server NAME examines one alone)", err=True)
    by_name = dict(finished)
    by_name |= {name: _invalid_entry(name, fault) for name, fault in target.faults.items() if name in chosen}
    reports = [by_name[name] for name in chosen if name in by_name]
    if as_json:
        shown = {"file": target.source, "fit": fitness(reports), "servers": [report.as_json() for report in reports]}
        print_json(shown)
    else:
        print_reports(reports, Console())
    if fix is not None:
        for line in write_fixed(target.source, fix, target.key, reports):
            typer.echo(f"{fix}: {line}", err=True)
    if not interrupted:
        check_tools(options.call_options, reports)
    return reports, interrupted


def _show(server: str, step: str) -> None:
    typer.echo(f"{server}: {step or 'examined'}", err=True)


def _invalid_entry(name: str, fault: ConfigError) -> ServerReport:
    """The report of a server that is not started because its entry is invalid."""
    report = ServerReport(server=name, transport="unknown", scope="unknown", scope_given=False)
    report.problems += [str(each) for each in faults_of(fault)]
    return report


def _chosen(target: Target, names: list[str]) -> list[str]:
    """The servers to report on, those with invalid entries included."""
    known = [*target.config.servers, *target.faults]
    for name in names:
        if name not in known:
            problem = f"server {name!r} is disabled" if name in target.disabled else f"no server {name!r}"
            remedy = f"servers: {', '.join(known) or 'none'}"
            raise ConfigError(problem, file=target.source, key="--server", remedy=remedy)
    return [name for name in known if not names or name in names]
