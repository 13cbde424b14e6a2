"""Validation of dataset rows, which collects the problems of all of them for a trainer's preflight."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import structlog

from mcp_rollout.gateway.catalogue.names import Catalogue
from mcp_rollout.gateway.catalogue.tool_config import LockEntry
from mcp_rollout.gateway.errors import ConfigError, faults_of
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.parquet import read_rows
from mcp_rollout.rollout.environment.reward_config import Component
from mcp_rollout.rollout.environment.rows import problems_of, unlike_text, warn_of_writing_checks
from mcp_rollout.rollout.environment.task import REMEDY, Task, question
from mcp_rollout.rollout.environment.validation import LOCK_KEY, locked_tools, missing_roles

log = structlog.get_logger(__name__)

AGENT, STOCK_AGENT = "mcp_agent", "tool_agent"
"""Agents of rows that name one of our environments: our agent loop, and verl's own with our tool class."""
VERL_AGENTS = ("single_turn_agent",)
"""Agents whose rows are not validated: they use no tools."""
ENVIRONMENT_KEY = "extra_info.mcp.environment"
_RESETS = 16
"""Resets in flight at a time."""

Schemas = list[dict[str, Any]]
Measure = Callable[[Task, Schemas], int]
"""Counts the tokens of a row's prompt with its tools. Raises ConfigError where the chat template refuses the prompt."""


class RowProblem(ConfigError):
    """A problem of a row, or of the whole file where `row` is None; `key` is the column."""

    def __init__(self, problem: str, *, path: Path, row: int | None, key: str, remedy: str = REMEDY) -> None:
        self.path, self.row = path, row
        super().__init__(problem, file=path if row is None else f"{path}: row {row}", key=key, remedy=remedy)


@dataclass(frozen=True, slots=True)
class Row:
    """A row that names one of our environments."""

    task: Task
    path: Path
    number: int
    """Its position in the file."""
    index: object
    """`extra_info.index`, which identifies the row in traces and in sampling seeds."""

    def problem(self, problem: str, *, key: str, remedy: str = REMEDY) -> RowProblem:
        return RowProblem(problem, path=self.path, row=self.number, key=key, remedy=remedy)


def read_task_rows(
    path: Path, *, agents: Collection[str] = (AGENT,), default_agent: str | None = AGENT, prompt_key: str = "prompt"
) -> tuple[list[Row], list[ConfigError]]:
    """Parse the rows of the given agents.

    Args:
        default_agent: The agent of rows that name none.
        prompt_key: The column of the prompt, as in `data.prompt_key`.

    Returns:
        The rows, and the problems of those that cannot be parsed.

    Raises:
        ConfigError: the file cannot be read.
    """
    rows: list[Row] = []
    problems: list[ConfigError] = []
    for number, raw in enumerate(read_rows(path)):
        if (raw.get("agent_name") or default_agent) not in agents:
            continue
        try:
            task = Task.from_row({**raw, "prompt": raw.get(prompt_key)})
        except ConfigError as error:
            for fault in faults_of(error):
                key = fault.key or "extra_info.mcp"
                if key.startswith("extra_info.mcp.prompt"):
                    key = key.removeprefix("extra_info.mcp.")  # a separate column
                remedy = fault.remedy or REMEDY
                problems.append(RowProblem(fault.problem, path=path, row=number, key=key, remedy=remedy))
        else:
            rows.append(Row(task, path, number, raw["extra_info"].get("index")))
    return rows, problems


def agent_problems(path: Path, agents: Collection[str], *, default_agent: str | None, remedy: str) -> list[RowProblem]:
    """Find rows whose agent loop is not registered: verl's worker would stop at the first of them.

    Args:
        agents: The registered names.
        default_agent: The agent of rows that name none.
        remedy: How another agent loop is registered.
    """
    named = ((number, raw.get("agent_name") or default_agent) for number, raw in enumerate(read_rows(path)))
    remedy = f"one of {', '.join(sorted(agents))}; {remedy}"
    return [
        RowProblem(f"unknown agent {agent!r}", path=path, row=number, key="agent_name", remedy=remedy)
        for number, agent in named
        if agent not in agents
    ]


def shared_indices(rows: Sequence[Row]) -> list[int]:
    """Numbers of the rows of a file whose `extra_info.index` is missing or belongs to an earlier row, too.

    Traces and sampling seeds would take them for one row.
    """
    seen: set[object] = {None}
    shared: list[int] = []
    for row in rows:
        if row.index in seen:
            shared.append(row.number)
        seen.add(row.index)
    return shared


def shared_problem(shared: Sequence[int]) -> str:
    """What is wrong with the rows that `shared_indices` found."""
    if len(shared) == 1:
        return f"row {shared[0]} has no number of its own: it is traced and sampled as another one"
    named = ", ".join(map(str, shared[:5])) + (f" and {len(shared) - 5} more" if len(shared) > 5 else "")
    return f"rows {named} have no numbers of their own: they are traced and sampled as one row"


def warn_of_repeats(rows: Iterable[Row], training: Collection[Path]) -> None:
    """Log what repeats a row of training: other rows of training, and held-out ones, which then show nothing new."""
    asked: set[tuple[str, str, int]] = set()
    seen: set[tuple[Any, ...]] = set()
    repeated: list[Row] = []
    held_out: list[tuple[Row, tuple[str, str, int]]] = []
    for row in rows:
        key = row.task.environment, question(row.task.prompt), row.task.seed
        if not key[1]:  # the environment's user asks
            continue
        if row.path in training:
            asked.add(key)
            whole = (*key, repr(row.task.setup), repr(row.task.check), row.task.answer)
            repeated += [row] if whole in seen else []
            seen.add(whole)
        else:
            held_out.append((row, key))
    if repeated:
        first = f"{repeated[0].path}: row {repeated[0].number}"
        log.warning("rows of training repeat others", rows=len(repeated), first=first)
    if shared := [row for row, key in held_out if key in asked]:
        first = f"{shared[0].path}: row {shared[0].number}"
        log.warning("held-out rows have prompts of training", rows=len(shared), of=len(held_out), first=first)


def environment_problem(row: Row, error: ConfigError, *, rows: int = 1) -> RowProblem:
    """The problem of a row whose environment cannot be loaded; `rows` of the file need it."""
    others = f", as {rows - 1} more rows do" if rows > 1 else ""
    said = str(error).removesuffix(f" ({error.remedy})")
    problem = f"needs environment {row.task.environment!r}{others}: {said}"
    return row.problem(problem, key=ENVIRONMENT_KEY, remedy=error.remedy)


async def environment_problems(
    environment: Environment,
    gateway: Gateway,
    rows: Sequence[Row],
    lock: Sequence[LockEntry],
    *,
    lock_path: str | None,
    lock_key: str = LOCK_KEY,
) -> tuple[list[ConfigError], Schemas]:
    """Validate roles, lock and rows of a running environment.

    Returns:
        The problems, and the schemas of the tools that the policy is shown.

    Raises:
        GatewayError: the world broke.
    """
    async with gateway.lease(trajectory=f"check-{uuid4().hex}", task=None, seed=0) as session:
        problems = missing_roles(environment, session)
        schemas = {tool.exposed_name: tool.openai_schema() for tool in session.tools.values()}
    try:
        schemas = locked_tools(environment.name, lock, gateway, path=lock_path, key=lock_key) or schemas
    except ConfigError as error:
        problems.append(error)
    for row in rows:
        problems += row_problems(row, environment, gateway.catalogue, schemas.keys())
    warn_of_writing_checks((row.task for row in rows), gateway.catalogue)
    return problems, list(schemas.values())


_COLUMNS = {"prompt": "prompt", "answer": "reward_model.ground_truth"}
"""The columns of a task's values that are not in `extra_info.mcp`."""


def row_problems(
    row: Row, environment: Environment, catalogue: Catalogue, tools: Collection[str]
) -> Iterator[RowProblem]:
    """Problems of a row with its environment. `tools` are the exposed names of what the policy may be shown."""
    for each in problems_of(row.task, environment, catalogue, tools):
        yield row.problem(
            each.problem, key=_COLUMNS.get(each.key or "", f"extra_info.mcp.{each.key}"), remedy=each.remedy
        )
    for each in unlike_text(row.task, environment):
        yield row.problem(each.problem, key="reward_model.ground_truth", remedy=each.remedy)
    reward = environment.reward
    if reward.weight(Component.SOLVED) and not (row.task.answer or row.task.check):
        problem = "has neither an answer nor checks, so that its reward is always 0"
        yield row.problem(problem, key="reward_model.ground_truth", remedy="give each task its `answer` or `check`")
    if reward.weight(Component.CHECKS) and not row.task.check:
        problem = "has no checks, so that the component `checks` is always 0"
        yield row.problem(problem, key="extra_info.mcp.check", remedy="give each task its `check`")


def prompt_lengths(
    rows: Sequence[Row], schemas: Schemas, measure: Measure, *, limit: int
) -> tuple[list[tuple[int, Row]], list[ConfigError]]:
    """Measure the prompts of an environment's rows, and collect those that exceed `limit` tokens or are refused."""
    lengths: list[tuple[int, Row]] = []
    problems: list[ConfigError] = []
    for row in rows:
        try:
            lengths.append((measure(row.task, row.task.shown(schemas)), row))
        except ConfigError as error:
            problems.append(row.problem(error.problem, key="prompt", remedy=error.remedy))
    longest = max((length for length, _ in lengths), default=0)
    remedy = f"raise data.max_prompt_length to at least {longest}, or give the rows fewer tools"
    for length, row in lengths:
        if length > limit:
            problem = f"the prompt has {length} tokens, {limit} are allowed"
            problems.append(row.problem(problem, key="prompt", remedy=remedy))
    return lengths, problems
