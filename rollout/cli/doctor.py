"""`doctor`: are these servers fit to be trained against, and under which scope?"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import anyio
import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text

from gateway.config import GatewayConfig
from gateway.errors import ConfigError, GatewayError
from gateway.gateway import Gateway
from gateway.hidden_text import find_hidden_in_tool
from rollout.cli.target import Target, load_target
from rollout.config import Environment
from rollout.doctor.examine import Options, examine
from rollout.doctor.fidelity import TokenCounter
from rollout.doctor.plan import NamedCall
from rollout.doctor.report import Latency, ServerReport
from rollout.rows import environment_tasks

_MOST_NOTES = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class DoctorOptions:
    """The command's options."""

    servers: tuple[str, ...]
    tokenizer: str | None
    calls: tuple[str, ...]
    allow_writes: bool


def examine_file(file: str, environments_dir: Path, options: DoctorOptions, *, as_json: bool) -> int:
    named = tuple(_named_call(text) for text in options.calls)
    target = load_target(file, environments_dir)
    config = _chosen(target, options.servers)
    for call in named:
        if call.server is not None and call.server not in config.servers:
            known = ", ".join(config.servers)
            raise ConfigError(f"no server {call.server!r}", key=f"--call {call.tool}", remedy=f"servers: {known}")
    counter = _counter(options.tokenizer)
    reports = anyio.run(_examine, target, config, named, options.allow_writes, counter)
    _refuse_unknown_tools(named, reports)
    fit = all(report.fit for report in reports)
    if as_json:
        record = {"file": target.source, "fit": fit, "servers": [report.as_json() for report in reports]}
        typer.echo(json.dumps(record, ensure_ascii=False))
    else:
        _print(reports, Console())
    return int(not fit)


def _named_call(text: str) -> NamedCall:
    name, found, arguments = text.partition("=")
    server, _, tool = name.rpartition("/")
    try:
        parsed: Any = json.loads(arguments if found else "{}")
    except json.JSONDecodeError as error:
        raise ConfigError(f"the arguments are not JSON: {error}", key=f"--call {name}", remedy="TOOL=JSON") from error
    if not isinstance(parsed, dict):
        raise ConfigError("the arguments are not a JSON object", key=f"--call {name}", remedy='TOOL={"x": 1}')
    return NamedCall(server=server or None, tool=tool, arguments=cast("dict[str, Any]", parsed))


def _chosen(target: Target, names: tuple[str, ...]) -> GatewayConfig:
    config = target.config
    for name in names:
        if name not in config.servers:
            remedy = f"servers: {', '.join(config.servers) or 'none'}"
            raise ConfigError(f"no server {name!r}", file=target.source, key="--server", remedy=remedy)
    chosen = {name: entry for name, entry in config.servers.items() if not names or name in names}
    if not chosen:
        raise ConfigError("no servers here", file=target.source, remedy="name one that is not disabled")
    return config.model_copy(update={"servers": chosen})


def _refuse_unknown_tools(named: tuple[NamedCall, ...], reports: list[ServerReport]) -> None:
    if any(not report.tools for report in reports):
        return  # a server that did not start may have it
    for call in named:
        offered = {
            name
            for report in reports
            for tool in report.tools
            if call.server in (None, report.server)
            for name in (tool.tool, tool.name)
        }
        if call.tool not in offered:
            raise ConfigError(f"no server has a tool {call.tool!r}", key="--call", remedy=", ".join(sorted(offered)))


def _counter(tokenizer: str | None) -> TokenCounter | None:
    if tokenizer is None:
        return None
    from rollout.verl.chat_tokens import ChatTokens

    return ChatTokens(tokenizer)


async def _examine(
    target: Target,
    config: GatewayConfig,
    named: tuple[NamedCall, ...],
    allow_writes: bool,
    counter: TokenCounter | None,
) -> list[ServerReport]:
    task = await _task(target.environment) if target.environment is not None else None
    options = Options(
        named=named,
        allow_writes=allow_writes,
        counter=counter,
        task=task,
        find_hidden=lambda tool: [str(found) for found in find_hidden_in_tool(tool)],
    )
    # Progress belongs to standard error; it draws nothing where that is no terminal.
    shown = Console(stderr=True)
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), console=shown, transient=True) as progress:
        bar = progress.add_task(f"examining {len(config.servers)} servers")
        left = set(config.servers)

        def done(report: ServerReport) -> None:
            left.discard(report.server)
            progress.update(bar, description=f"examining {', '.join(sorted(left))}")

        return await examine(config, options, done=done)


async def _task(environment: Environment) -> tuple[str, int] | None:
    """A task of the environment, to reset its servers to; None where it lists none or cannot be asked."""
    if environment.tasks is None:
        return None
    server = environment.tasks.server
    config = environment.gateway_config().model_copy(update={"servers": {server: environment.servers[server]}})
    try:
        async with Gateway(config, name="doctor") as gateway:
            tasks = await environment_tasks(environment, gateway, "train", 1)
    except (GatewayError, ConfigError):
        return None  # the report on that server says what is wrong with it
    return (tasks[0].task, tasks[0].seed) if tasks else None


def _print(reports: list[ServerReport], console: Console) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("server", overflow="fold", min_width=6)
    for column in ("via", "protocol", "start", "call", "tools", "tokens", "scope", "fit"):
        right = column in ("start", "call", "tools", "tokens")
        table.add_column(column, justify="right" if right else "left", no_wrap=True)
    for report in reports:
        policy = [tool for tool in report.tools if tool.audience == "policy"]
        table.add_row(
            Text(report.server),
            report.transport.replace("in_process", "here"),
            report.protocol_version or "-",
            _seconds(report.start),
            _seconds(report.call),
            str(len(policy)) if report.tools else "-",
            _tokens(report),
            (report.advice.scope or "none") if report.advice else "-",
            Text("yes", "green") if report.fit else Text("no", "bold red"),
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
    for problem in report.problems:
        grid.add_row("unfit", Text(problem, "red"))
    if report.advice is not None and report.advice.scope is not None:
        grid.add_row("scope", Text(f"{report.advice.scope}: {report.advice.reason}"))
    for found in report.isolation:
        grid.add_row("isolation", Text(f"under {found.scope}: {found.finding}"))
    if report.start and report.call:
        grid.add_row("latency", Text(_latency(report)))
    if report.tools:
        faithful = sum(tool.faithful for tool in report.tools)
        grid.add_row("schemas", Text(f"{faithful} of {len(report.tools)} reach the chat template byte for byte"))
    if report.determinism is not None:
        grid.add_row("same call", Text(_determinism(report)))
    if report.hung is not None:
        grid.add_row("hung", Text(report.hung.said))
    if report.killed is not None:
        grid.add_row("killed", Text(report.killed.said))
    if report.withheld:
        grid.add_row("not called", Text(", ".join(report.withheld)))
    for note in report.notes[:_MOST_NOTES]:
        grid.add_row("note", Text(note))
    if len(report.notes) > _MOST_NOTES:
        grid.add_row("note", Text(f"{len(report.notes) - _MOST_NOTES} more with --json"))
    console.print(grid)


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
    return f"{len(found.called)} tools answered the same in fresh leases"
