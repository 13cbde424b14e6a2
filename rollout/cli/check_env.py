"""`check-env`: does an environment keep the harness contract?"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import anyio
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.errors import ConfigError
from rollout.contract import Options, Outcome, Report, check_environment
from rollout.environment.config import load_environment
from rollout.environment.harness import ListedTask

_COLOURS = {Outcome.HOLDS: "green", Outcome.FAILS: "bold red", Outcome.UNTESTED: "dim"}


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckOptions:
    """The command's options."""

    tasks: int
    task: str | None
    seed: int | None
    user_varies: bool


def check_env(name: str, environments_dir: Path, options: CheckOptions, *, as_json: bool) -> int:
    """Exit status 1 where a clause fails."""
    if options.seed is not None and options.task is None:
        raise ConfigError("a seed without a task", key="--seed", remedy="add --task, or leave both out")
    environment = load_environment(name, environments_dir)
    item = None if options.task is None else ListedTask(task=options.task, seed=options.seed or 0)
    given = Options(tasks=options.tasks, task=item, user_varies=options.user_varies)
    report = anyio.run(check_environment, environment, given)
    if as_json:
        typer.echo(json.dumps(report.as_json()))
    else:
        _print(report, Console())
    return int(not report.keeps_the_contract)


def _print(report: Report, console: Console) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("clause", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("seen", overflow="fold")
    for finding in report.findings:
        said = Text(finding.said)
        if finding.remedy:
            said.append(f"\n-> {finding.remedy}")
        table.add_row(finding.clause, Text(finding.outcome, _COLOURS[finding.outcome]), said)
    console.print(table)
    kept = "keeps the contract" if report.keeps_the_contract else f"breaks {', '.join(report.failed)}"
    console.print(Text(f"{report.environment} {kept}"))
