"""`data`: write an environment's tasks as rows for verl, and validate rows before a run."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import anyio
import typer
from rich.progress import Progress
from rich.text import Text

from mcp_rollout.gateway.catalogue.tool_config import LockEntry, read_lock
from mcp_rollout.gateway.errors import ConfigError, Faults, GatewayError, faults_of
from mcp_rollout.rollout.cli.option_models import with_option_models
from mcp_rollout.rollout.cli.options import (
    AsJson,
    ChatTemplateFile,
    TaskSource,
    plain_table,
    print_json,
    print_result,
    template_text,
)
from mcp_rollout.rollout.cli.output import Console
from mcp_rollout.rollout.environment.agent_loops import read_agent_loops
from mcp_rollout.rollout.environment.config import Environment, load_for_row
from mcp_rollout.rollout.environment.parquet import check_suffix, write_parquet
from mcp_rollout.rollout.environment.row_validation import (
    AGENT,
    STOCK_AGENT,
    VERL_AGENTS,
    Row,
    RowProblem,
    Schemas,
    agent_problems,
    environment_problem,
    environment_problems,
    prompt_lengths,
    read_task_rows,
    shared_indices,
    shared_problem,
    source_problems,
    task_problems,
)
from mcp_rollout.rollout.environment.rows import environment_tasks
from mcp_rollout.rollout.environment.startup import opened_environment
from mcp_rollout.rollout.environment.task import ALL, Task
from mcp_rollout.rollout.evaluation.summary import note_on_rewards
from mcp_rollout.rollout.tokens.chat_template import ChatTemplate, check_tools_rendered

MOST_SHOWN = 20
_ELSEWHERE = "--environments-dir names the directory of its file"

app = typer.Typer(add_completion=False)
Measure = Callable[[Sequence[Row], Schemas], list[ConfigError]]
"""Finds the prompts that are too long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowCheck:
    """What rows are held against."""

    tool_config: Annotated[Path | None, typer.Option(help="--check: the lock to compare with.")] = None
    tokenizer: Annotated[str | None, typer.Option(metavar="MODEL", help="--check: whose prompts are measured.")] = None
    chat_template: ChatTemplateFile = None
    max_prompt_length: Annotated[
        int | None, typer.Option(min=1, help="--check: how long a prompt may be, in tokens.")
    ] = None
    agent_loops: Annotated[
        Path | None, typer.Option(help="--check: agent loops of your own, verl's agent_loop_config_path.")
    ] = None

    def agents(self) -> set[str]:
        """The agents that rows may name."""
        return {AGENT, STOCK_AGENT, *VERL_AGENTS, *(read_agent_loops(self.agent_loops) if self.agent_loops else ())}

    def measure(self) -> Measure | None:
        """Load what measures prompts; None where they are not measured."""
        limit = self.max_prompt_length
        if (limit is None) is not (self.tokenizer is None):
            key = "--max-prompt-length" if limit is None else "--tokenizer"
            raise ConfigError("lengths need both", key=key, remedy="give --tokenizer MODEL and --max-prompt-length N")
        text = template_text(self.tokenizer, self.chat_template)
        if self.tokenizer is None or limit is None:
            return None
        template = ChatTemplate(self.tokenizer, chat_template=text)

        def length(task: Task, tools: Sequence[Mapping[str, Any]]) -> int:
            return template.count_prompt(task.prompt, tools)

        def measure(rows: Sequence[Row], schemas: Schemas) -> list[ConfigError]:
            first, faults = rows[0].task, Faults()
            with faults.collected():
                shown = first.shown(schemas)
                check_tools_rendered(lambda tools: template.render(first.prompt, tools), shown, key="--chat-template")
            return faults + prompt_lengths(rows, schemas, length, limit=limit)[1]

        return measure


@app.command()
@with_option_models
def data(
    environment: Annotated[
        str | None, typer.Argument(help="The environment: its YAML file or its name; none with --check.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The parquet file to write.")] = None,
    *,
    source: TaskSource,
    row_check: RowCheck,
    split: Annotated[str | None, typer.Option(help="train, test or all; by default train, of --tasks all.")] = None,
    rows: Annotated[int | None, typer.Option("-n", min=1, help="How many rows; all tasks by default.")] = None,
    tools: Annotated[
        str | None, typer.Option(help="Tools the policy may use, comma-separated; all by default.")
    ] = None,
    agent: Annotated[str, typer.Option(help="verl's agent_name of the rows.")] = AGENT,
    check: Annotated[Path | None, typer.Option(help="Examine this parquet file, and write none.")] = None,
    as_json: AsJson = False,
) -> int:
    """Write an environment's tasks as rows for verl, or examine rows before a run.

    With --check every problem is listed with row, column and remedy; the exit status is 1 where there is one.
    """
    if check is not None:
        if environment is not None or output is not None:
            raise ConfigError(
                "examines a file and writes none", key="--check", remedy="give one file, without ENVIRONMENT and -o"
            )
        return _check(check, row_check, source.environments_dir, as_json=as_json)
    if environment is None or output is None:
        missing = "ENVIRONMENT" if environment is None else "-o"
        raise ConfigError("is not given", key=missing, remedy="mcp-rollout data ENVIRONMENT -o FILE, or --check FILE")
    check_suffix(output)
    loaded = source.load(environment)
    split = source.split(split, default="train")
    selected = None if tools is None else tuple(name.strip() for name in tools.split(","))
    tasks = anyio.run(_tasks, loaded, split, rows, selected)
    write_parquet(output, tasks, split=split, agent=agent)
    if note := note_on_rewards(loaded, tasks):
        typer.echo(f"note: {note}", err=True)
    record = {"path": str(output), "environment": loaded.name, "split": split, "rows": len(tasks)}
    print_result(
        record, f"{output}: {len(tasks)} {'' if split == ALL else f'{split} '}rows of {loaded.name}", as_json=as_json
    )
    return 0


async def _tasks(environment: Environment, split: str, rows: int | None, tools: tuple[str, ...] | None) -> list[Task]:
    async with opened_environment(environment) as gateway:
        tasks = await environment_tasks(environment, gateway, split, rows)
        if tools is not None:
            if any(task.tools is not None or task.later_tools for task in tasks):
                problem = f"the tasks of {environment.name} choose their tools themselves"
                raise ConfigError(problem, key="--tools", remedy="leave it out")
            # The lease refuses unknown names.
            async with gateway.lease(trajectory=uuid4().hex, task=None, seed=0, tools=tools):
                tasks = [task.model_copy(update={"tools": tools}) for task in tasks]
    return tasks


def _check(file: Path, row_check: RowCheck, environments_dir: Path | None, *, as_json: bool) -> int:
    measure, agents, tool_config = row_check.measure(), row_check.agents(), row_check.tool_config
    lock = read_lock(tool_config) if tool_config else []
    rows, problems = read_task_rows(file, agents=(AGENT, STOCK_AGENT))
    remedy = "--agent-loops names the file that registers your own"
    problems += agent_problems(file, agents, default_agent=AGENT, remedy=remedy)
    problems += source_problems(file)
    if shared := shared_indices(rows):
        problem = shared_problem(shared)
        problems.append(
            RowProblem(problem, path=file, row=None, key="extra_info.index", remedy="number the rows from 0")
        )
    for name in sorted({row.task.environment for row in rows}):
        own = [row for row in rows if row.task.environment == name]
        problems += anyio.run(_environment_rows, name, own, environments_dir, lock, tool_config, measure)
    found = [_record(fault) for problem in problems for fault in faults_of(problem)]
    found.sort(key=lambda problem: -1 if problem["row"] is None else problem["row"])
    if as_json:
        shown = found[: MOST_SHOWN * 10]
        print_json({"path": str(file), "rows": len(rows), "problems": len(found), "shown": shown})
    else:
        _print_problems(file, len(rows), found)
    return int(bool(found))


async def _environment_rows(
    name: str,
    rows: Sequence[Row],
    environments_dir: Path | None,
    lock: Sequence[LockEntry],
    tool_config: Path | None,
    measure: Measure | None,
) -> list[ConfigError]:
    """Collect the problems of an environment and of its rows."""
    try:
        environment = load_for_row(name, environments_dir)
    except ConfigError as error:
        if environments_dir is None and error.problem.startswith("unknown environment"):
            remedy = f"{_ELSEWHERE}; {error.remedy}"
            error = ConfigError(error.problem, file=error.file, key=error.key, remedy=remedy)
        return [environment_problem(rows[0], error, rows=len(rows))]
    problems: list[ConfigError] = []
    try:
        async with opened_environment(environment) as gateway:
            found, schemas = await environment_problems(environment, gateway, rows, lock, lock_path=str(tool_config))
            problems += found
            with _progress(f"{name}: tasks that it does not list") as progress:
                problems += await task_problems(environment, gateway, rows, progress)
    except ConfigError as error:
        return [*problems, error]
    except GatewayError as error:
        remedy = "mcp-rollout check-env shows what fails"
        return [*problems, ConfigError(str(error), key=f"environment {name}", remedy=remedy)]
    if measure is not None:
        problems += measure(rows, schemas)
    return problems


@contextmanager
def _progress(label: str) -> Generator[Callable[[int, int], None]]:
    """Draws progress on standard error, where that is a terminal."""
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(label, visible=False)
        yield lambda done, total: progress.update(bar, completed=done, total=total, visible=True)


def _record(problem: ConfigError) -> dict[str, Any]:
    row = problem.row if isinstance(problem, RowProblem) else None
    return {"row": row, "column": problem.key or "-", "problem": problem.problem, "remedy": problem.remedy}


def _print_problems(file: Path, rows: int, problems: Sequence[dict[str, Any]]) -> None:
    console = Console()
    if problems:
        table = plain_table()
        table.add_column("row", justify="right", no_wrap=True)
        table.add_column("column", overflow="fold")
        table.add_column("problem", overflow="fold")
        for problem in problems[:MOST_SHOWN]:
            row = "-" if problem["row"] is None else str(problem["row"])
            text = problem["problem"].strip() + (f"\n-> {problem['remedy']}" if problem["remedy"] else "")
            table.add_row(row, Text(problem["column"]), Text(text))
        console.print(table)
        if len(problems) > MOST_SHOWN:
            console.print(f"and {len(problems) - MOST_SHOWN} more (--json has {MOST_SHOWN * 10})")
    console.print(Text(f"{file}: {rows} rows of mcp_agent, {len(problems)} problems"))
