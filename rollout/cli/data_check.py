"""`data --check`: rows against environments, lock and lengths, before a run; every problem, not the first alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from gateway.catalogue.tool_config import LockEntry, read_lock
from gateway.errors import ConfigError, GatewayError
from gateway.gateway import Gateway
from rollout.environment.config import Environment, load_environment
from rollout.environment.parquet import read_rows
from rollout.environment.rows import SPLITS, environment_tasks
from rollout.environment.startup import opened
from rollout.environment.task import REMEDY, Task
from rollout.environment.validation import locked_tools, missing_roles, row_faults, selected, unnumbered

AGENTS = ("mcp_agent", "tool_agent")
VERLS = ("single_turn_agent",)
"""Rows of these are verl's business."""
MOST_SHOWN = 20
_AT_A_TIME = 16
"""Rows whose task no list has are tried by a reset, so many side by side."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckOptions:
    """The command's options."""

    file: Path
    tool_config: Path | None = None
    tokenizer: str | None = None
    max_prompt_length: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One thing that is wrong; `row` is None where it concerns the file or an environment."""

    row: int | None
    column: str
    problem: str
    remedy: str

    @classmethod
    def of(cls, error: Exception, *, row: int | None, column: str) -> Problem:
        if isinstance(error, ConfigError):
            return cls(row=row, column=error.key or column, problem=error.problem, remedy=error.remedy)
        return cls(row=row, column=column, problem=str(error), remedy="mcp-rollout check-env says what is wrong")


@dataclass(frozen=True, slots=True)
class Row:
    number: int
    task: Task


def check_rows(environments_dir: Path, options: CheckOptions, *, as_json: bool) -> int:
    """Exit status 1 where something is wrong.

    Raises:
        ConfigError: the file, the lock or the tokenizer cannot be read at all.
    """
    if (options.max_prompt_length is None) is not (options.tokenizer is None):
        key = "--max-prompt-length" if options.max_prompt_length is None else "--tokenizer"
        raise ConfigError("lengths need both", key=key, remedy="give --tokenizer MODEL and --max-prompt-length N")
    lock = read_lock(options.tool_config) if options.tool_config else []
    problems: list[Problem] = []
    rows = list(_parsed(options.file, problems))
    tokens = _load_tokens(options.tokenizer) if options.tokenizer else None
    for name in sorted({row.task.environment for row in rows}):
        own = [row for row in rows if row.task.environment == name]
        found, schemas = anyio.run(_environment_problems, name, environments_dir, own, lock, options.tool_config)
        problems += found
        if tokens is not None and schemas is not None and options.max_prompt_length is not None:
            problems += _too_long(tokens, own, schemas, options.max_prompt_length)
    problems.sort(key=lambda problem: -1 if problem.row is None else problem.row)
    _say(options.file, len(rows), problems, as_json=as_json)
    return int(bool(problems))


def _parsed(file: Path, problems: list[Problem]) -> Iterator[Row]:
    """Our rows; what cannot be read as one is a problem."""
    number = -1
    indices: list[object] = []
    for number, raw in enumerate(read_rows(file)):
        agent = raw.get("agent_name")
        if agent in VERLS:
            continue
        if agent is not None and agent not in AGENTS:
            said = f"agent {agent!r} is none of ours"
            problems.append(
                Problem(row=number, column="agent_name", problem=said, remedy=f"one of {', '.join((*AGENTS, *VERLS))}")
            )
            continue
        if not isinstance(raw.get("data_source"), str):
            said = "verl picks metrics and reward functions by it, and it is not there"
            problems.append(Problem(row=number, column="data_source", problem=said, remedy=REMEDY))
        try:
            yield Row(number, Task.from_row(raw))
            indices.append(raw["extra_info"].get("index"))
        except ConfigError as error:
            column = (error.key or "extra_info.mcp").replace("extra_info.mcp.prompt", "prompt")
            problems.append(Problem(row=number, column=column, problem=error.problem, remedy=error.remedy or REMEDY))
    if shared := unnumbered(indices):
        said = f"{len(shared)} rows have no number of their own: they are traced and sampled as one row"
        remedy = "number the rows from 0"
        problems.append(Problem(row=None, column="extra_info.index", problem=said, remedy=remedy))
    if number < 0:
        problems.append(Problem(row=None, column="-", problem="the file has no rows", remedy=REMEDY))


async def _environment_problems(
    name: str, directory: Path, rows: Sequence[Row], lock: Sequence[LockEntry], lock_file: Path | None
) -> tuple[list[Problem], list[dict[str, Any]] | None]:
    """What is wrong with an environment's rows, and the schemas that its prompts carry where it runs."""
    try:
        environment = load_environment(name, directory)
    except ConfigError as error:
        problem = Problem.of(error, row=rows[0].number, column="extra_info.mcp.environment")
        wrong = Problem(row=problem.row, column="extra_info.mcp.environment", problem=str(error), remedy=problem.remedy)
        return [wrong], None
    problems: list[Problem] = []
    try:
        async with opened(environment, name=name, source=environment.file) as gateway:
            async with gateway.lease(trajectory=f"check-{uuid4().hex}", task=None, seed=0) as session:
                problems += [Problem.of(fault, row=None, column="") for fault in missing_roles(environment, session)]
                schemas = {tool.exposed_name: tool.openai_schema() for tool in session.tools.values()}
            try:
                locked = locked_tools(name, lock, gateway, path=str(lock_file))
            except ConfigError as error:
                problems.append(Problem.of(error, row=None, column="--tool-config"))
                locked = None
            schemas = schemas if locked is None else locked
            for row in rows:
                faults = row_faults(row.task, environment, schemas.keys(), where=f"row {row.number}")
                problems += [Problem.of(fault, row=row.number, column="prompt") for fault in faults]
            problems += await _task_problems(environment, gateway, rows)
    except (ConfigError, GatewayError) as error:
        return [*problems, Problem.of(error, row=None, column=f"environment {name}")], None
    return problems, list(schemas.values())


async def _task_problems(environment: Environment, gateway: Gateway, rows: Sequence[Row]) -> list[Problem]:
    """Tasks that the environment does not know, and openings that its user does not say."""
    listed: dict[tuple[str, int], Task] = {}
    if environment.tasks is not None:
        for split in SPLITS:
            for task in await environment_tasks(environment, gateway, split, None):
                listed[task.task, task.seed] = task
    problems: list[Problem] = []
    unlisted: dict[tuple[str, int], Row] = {}
    for row in rows:
        known = listed.get((row.task.task, row.task.seed))
        if known is None:
            unlisted.setdefault((row.task.task, row.task.seed), row)
        elif environment.user is not None and known.prompt[-1]["role"] == row.task.prompt[-1]["role"] == "user":
            if known.prompt[-1]["content"] != row.task.prompt[-1]["content"]:
                said = "its user begins otherwise than the row says"
                problems.append(Problem(row=row.number, column="prompt", problem=said, remedy=REMEDY))
    return problems + await _reset_problems(environment, gateway, list(unlisted.values()))


async def _reset_problems(environment: Environment, gateway: Gateway, rows: Sequence[Row]) -> list[Problem]:
    """Tasks that no list has and that cannot be begun either; every one of them is tried."""
    found: dict[int, Problem] = {}
    places = anyio.CapacityLimiter(_AT_A_TIME)

    async def attempt(row: Row) -> None:
        name, task, seed = f"check-{uuid4().hex}", row.task.task, row.task.seed
        async with places:
            try:
                async with gateway.lease(trajectory=name, task=task, seed=seed):
                    pass
            except (ConfigError, GatewayError) as error:
                remedy = f"{environment.name} does not list it; {REMEDY}"
                column = "extra_info.mcp.task"
                found[row.number] = Problem(row=row.number, column=column, problem=str(error), remedy=remedy)
        progress.advance(bar)

    # Progress belongs to standard error; it draws nothing where that is no terminal.
    with Progress(console=Console(stderr=True), disable=not rows, transient=True) as progress:
        bar = progress.add_task(f"{environment.name}: tasks that it does not list", total=len(rows))
        async with anyio.create_task_group() as attempts:
            for row in rows:
                attempts.start_soon(attempt, row)
    return [found[number] for number in sorted(found)]


def _load_tokens(model: str) -> Any:
    try:
        from rollout.tokens.verl_builder import load_tokens
    except ImportError as error:
        remedy = "pip install -c constraints/cpu.txt '.[verl]'"
        raise ConfigError("needs verl and transformers", key="--tokenizer", remedy=remedy) from error
    return load_tokens(model, key="--tokenizer")


def _too_long(tokens: Any, rows: Iterable[Row], schemas: Sequence[dict[str, Any]], limit: int) -> Iterator[Problem]:
    from rollout.tokens.counting import prompt_length

    for row in rows:
        try:
            length = prompt_length(tokens, row.task, selected(schemas, row.task))
        except ConfigError as error:
            yield Problem.of(error, row=row.number, column="prompt")
            continue
        if length > limit:
            said = f"the prompt has {length} tokens, {limit} are allowed"
            remedy = f"raise data.max_prompt_length to at least {length}, or give the row fewer tools"
            yield Problem(row=row.number, column="prompt", problem=said, remedy=remedy)


def _say(file: Path, rows: int, problems: Sequence[Problem], *, as_json: bool) -> None:
    if as_json:
        shown = [asdict(problem) for problem in problems[: MOST_SHOWN * 10]]
        typer.echo(json.dumps({"path": str(file), "rows": rows, "problems": len(problems), "shown": shown}))
        return
    console = Console()
    if problems:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
        table.add_column("row", justify="right", no_wrap=True)
        table.add_column("column", overflow="fold")
        table.add_column("problem", overflow="fold")
        for problem in problems[:MOST_SHOWN]:
            where = "-" if problem.row is None else str(problem.row)
            text = problem.problem.strip() + (f"\n-> {problem.remedy}" if problem.remedy else "")
            table.add_row(where, Text(problem.column), Text(text))
        console.print(table)
        if len(problems) > MOST_SHOWN:
            console.print(f"and {len(problems) - MOST_SHOWN} more (--json has {MOST_SHOWN * 10})", highlight=False)
    console.print(Text(f"{file}: {rows} rows of ours, {len(problems)} problems"))
