"""`check-env`: validate an environment against the harness contract."""

from __future__ import annotations

from typing import Annotated

import anyio
import typer
from rich.text import Text

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.cli.live import shown_steps
from mcp_rollout.rollout.cli.option_models import with_option_models
from mcp_rollout.rollout.cli.options import AsJson, EnvironmentName, TaskSource, plain_table, print_json
from mcp_rollout.rollout.cli.output import Console
from mcp_rollout.rollout.contract import Options, Outcome, Report, check_environment
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.harness import ListedTask
from mcp_rollout.rollout.loop.agent import agent_settings, build_agent
from mcp_rollout.rollout.loop.reward import check_reward
from mcp_rollout.rollout.programs.trial import try_out

_COLOURS = {Outcome.HOLDS: "green", Outcome.DOUBTFUL: "yellow", Outcome.FAILS: "bold red", Outcome.UNTESTED: "dim"}
_PROGRESS_S = 5.0
"""Seconds between lines of progress where standard error is not a terminal."""

app = typer.Typer(add_completion=False)


@app.command()
@with_option_models
def check_env(
    environment: EnvironmentName,
    source: TaskSource,
    tasks: Annotated[int, typer.Option("-n", min=1, help="How many test tasks are played.")] = 3,
    task: Annotated[str | None, typer.Option(help="Play this task, where the environment lists none.")] = None,
    seed: Annotated[int | None, typer.Option(help="The seed of --task; 0 by default.")] = None,
    user_varies: Annotated[
        bool, typer.Option("--user-varies", help="The user is a model or a person: its words may differ.")
    ] = False,
    program: Annotated[
        bool,
        typer.Option(
            "--program", help="Play one task by the environment's agent, a program, and list what it changes."
        ),
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Examine whether an environment keeps the harness contract. Exit status 1 where a clause fails."""
    if seed is not None and task is None:
        raise ConfigError("a seed without a task", key="--seed", remedy="add --task, or leave both out")
    loaded = source.load(environment)
    build_agent(loaded)
    check_reward(loaded)
    if program:
        return _try_out(loaded, as_json)
    item = None if task is None else ListedTask(task=task, seed=seed or 0)
    options = Options(tasks=tasks, task=item, user_varies=user_varies)
    report = anyio.run(_examined, loaded, options)
    if as_json:
        print_json(report.as_json())
    else:
        _print(report, Console())
    return int(not report.keeps_the_contract)


async def _examined(loaded: Environment, options: Options) -> Report:
    async with shown_steps(f"check-env {loaded.name}", every_s=_PROGRESS_S) as doing:
        return await check_environment(loaded, options, progress=doing)


def _try_out(loaded: Environment, as_json: bool) -> int:
    if loaded.agent is None:
        remedy = "name a program under agent: {use: mcp_rollout.rollout.programs.program:Program, with: {...}}"
        raise ConfigError("the environment has no agent", file=loaded.file, key="agent", remedy=remedy)
    trial = anyio.run(try_out, loaded)
    found = [*agent_settings(loaded).items(), *trial.lines()]
    if as_json:
        seen = [{"about": about, "text": text} for about, text in found]
        print_json({"withdrawn": trial.trace.is_withdrawn, "seen": seen})
    else:
        table = plain_table()
        table.add_column("", no_wrap=True)
        table.add_column("seen", overflow="fold")
        for about, text in found:
            table.add_row(about, Text(text))
        Console().print(table)
    return int(trial.trace.is_withdrawn)


def _print(report: Report, console: Console) -> None:
    table = plain_table()
    table.add_column("clause", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("seen", overflow="fold")
    for result in report.results:
        text = Text(result.said)
        if result.remedy:
            text.append(f"\n-> {result.remedy}")
        table.add_row(result.clause, Text(result.outcome, _COLOURS[result.outcome]), text)
    console.print(table)
    verdict = "keeps the contract" if report.keeps_the_contract else f"breaks {', '.join(report.failed)}"
    console.print(Text(f"{report.environment} {verdict}"))
