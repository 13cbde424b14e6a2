"""`doctor`: are these servers fit to be trained against, and under which scope?"""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

from gateway.catalogue.hidden_text import find_hidden_in_tool
from gateway.config.models import GatewayConfig
from gateway.errors import ConfigError, GatewayError, faults_of
from gateway.gateway import Gateway
from rollout.cli.doctor_table import print_reports
from rollout.cli.target import Target, load_target
from rollout.cli.tokenizer_option import load_counter
from rollout.doctor.call_option import check_named
from rollout.doctor.examination import Options, Told
from rollout.doctor.examine import examine
from rollout.doctor.fidelity import TokenCounter
from rollout.doctor.plan import NamedCall
from rollout.doctor.report import ServerReport
from rollout.environment.config import Environment
from rollout.environment.rows import environment_tasks


@dataclass(frozen=True, kw_only=True, slots=True)
class DoctorOptions:
    """The command's options."""

    servers: tuple[str, ...]
    tokenizer: str | None
    calls: tuple[str, ...]
    allow_writes: bool
    at_a_time: int = 4


UNFIT, UNKNOWN, INTERRUPTED = 1, 3, 130
"""Exit statuses. 2 is for bad input, as everywhere."""


def examine_file(file: str, environments_dir: Path, options: DoctorOptions, *, as_json: bool) -> int:
    target = load_target(file, environments_dir, all_valid=False)
    chosen = _chosen(target, options.servers)
    config = target.config.model_copy(
        update={"servers": {name: entry for name, entry in target.config.servers.items() if name in chosen}}
    )
    named = tuple(_named_call(text, chosen) for text in options.calls)
    counter = load_counter(options.tokenizer)
    try:
        anyio.run(partial(check_named, config, named, source=target.source))
        examined = anyio.run(_examine, target, config, named, options, counter, as_json) if config.servers else []
    except KeyboardInterrupt:
        typer.echo("interrupted: no report; --server NAME examines one server alone", err=True)
        raise typer.Exit(INTERRUPTED) from None
    by_name = {report.server: report for report in examined}
    by_name |= {name: _wrong_entry(name, fault) for name, fault in target.faults.items() if name in chosen}
    reports = [by_name[name] for name in chosen]
    fit = _all_fit(reports)
    if as_json:
        record = {"file": target.source, "fit": fit, "servers": [report.as_json() for report in reports]}
        typer.echo(json.dumps(record, ensure_ascii=False))
    else:
        print_reports(reports, Console())
    return 0 if fit else UNKNOWN if fit is None else UNFIT


def _all_fit(reports: list[ServerReport]) -> bool | None:
    fits = [report.fit for report in reports]
    return False if False in fits else None if None in fits else True


def _wrong_entry(name: str, fault: ConfigError) -> ServerReport:
    """A server that cannot even be started for what its entry says."""
    report = ServerReport(server=name, transport="unknown", scope="unknown", scope_given=False)
    report.problems += [str(each) for each in faults_of(fault)]
    return report


def _named_call(text: str, servers: list[str]) -> NamedCall:
    name, found, arguments = text.partition("=")
    known = max((each for each in servers if name.startswith(f"{each}/")), key=len, default=None)
    server, _, tool = (known, "/", name.removeprefix(f"{known}/")) if known else name.rpartition("/")
    try:
        parsed: Any = json.loads(arguments if found else "{}")
    except json.JSONDecodeError as error:
        raise ConfigError(f"the arguments are not JSON: {error}", key=f"--call {name}", remedy="TOOL=JSON") from error
    if not isinstance(parsed, dict):
        raise ConfigError("the arguments are not a JSON object", key=f"--call {name}", remedy='TOOL={"x": 1}')
    return NamedCall(server=server or None, tool=tool, arguments=cast("dict[str, Any]", parsed))


def _chosen(target: Target, names: tuple[str, ...]) -> list[str]:
    """The servers to report on, those with wrong entries among them."""
    known = [*target.config.servers, *target.faults]
    for name in names:
        if name not in known:
            problem = f"server {name!r} is disabled" if name in target.disabled else f"no server {name!r}"
            remedy = f"servers: {', '.join(known) or 'none'}"
            raise ConfigError(problem, file=target.source, key="--server", remedy=remedy)
    return [name for name in known if not names or name in names]


async def _examine(
    target: Target,
    config: GatewayConfig,
    named: tuple[NamedCall, ...],
    given: DoctorOptions,
    counter: TokenCounter | None,
    as_json: bool,
) -> list[ServerReport]:
    task = await _task(target.environment) if target.environment is not None else None
    options = Options(
        named=named,
        allow_writes=given.allow_writes,
        counter=counter,
        task=task,
        find_hidden=lambda tool: [str(found) for found in find_hidden_in_tool(tool)],
        at_a_time=given.at_a_time,
        key=target.key,
    )
    with _progress(len(config.servers), as_json=as_json) as told:
        return await examine(config, options, told=told)


@contextmanager
def _progress(servers: int, *, as_json: bool) -> Generator[Told]:
    """Says on standard error what is being done, where somebody looks at it. Programs are told nothing."""
    console = Console(stderr=True)
    if as_json or not console.is_terminal:
        yield lambda _, __: None
        return
    under_way: dict[str, str] = {}
    done: set[str] = set()
    columns = (SpinnerColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task(f"examining {servers} servers")

        def told(server: str, what: str) -> None:
            under_way.pop(server, None)
            if what:
                under_way[server] = what
            else:
                done.add(server)
            now = "; ".join(f"{name}: {each}" for name, each in under_way.items())
            progress.update(bar, description=f"{len(done)} of {servers} examined. {now}")

        yield told


async def _task(environment: Environment) -> tuple[str, int] | None:
    """A task of the environment, to reset its servers to; None where it lists none or cannot be asked."""
    if environment.tasks is None:
        return None
    server = environment.tasks.server
    config = environment.model_copy(update={"servers": {server: environment.servers[server]}})
    try:
        async with Gateway(config, name="doctor") as gateway:
            tasks = await environment_tasks(environment, gateway, "train", 1)
    except (GatewayError, ConfigError):
        return None  # the report on that server says what is wrong with it
    return (tasks[0].task, tasks[0].seed) if tasks else None
