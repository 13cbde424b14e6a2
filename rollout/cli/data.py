"""`data`: write an environment's tasks as rows for verl."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from uuid import uuid4

import anyio
import typer

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.cli.option_models import with_option_models
from mcp_rollout.rollout.cli.options import AsJson, EnvironmentName, TaskSource, print_result
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.parquet import check_suffix, write_parquet
from mcp_rollout.rollout.environment.row_validation import AGENT
from mcp_rollout.rollout.environment.rows import environment_tasks
from mcp_rollout.rollout.environment.startup import opened_environment
from mcp_rollout.rollout.environment.task import ALL, Task
from mcp_rollout.rollout.evaluation.summary import note_on_rewards

app = typer.Typer(add_completion=False)


@app.command()
@with_option_models
def data(
    environment: EnvironmentName,
    output: Annotated[Path, typer.Option("-o", "--output", help="The parquet file to write.")],
    source: TaskSource,
    split: Annotated[str | None, typer.Option(help="train, test or all; by default train, of --tasks all.")] = None,
    rows: Annotated[int | None, typer.Option("-n", min=1, help="How many rows; all tasks by default.")] = None,
    tools: Annotated[
        str | None, typer.Option(help="Tools the policy may use, comma-separated; all by default.")
    ] = None,
    agent: Annotated[str, typer.Option(help="verl's agent_name of the rows.")] = AGENT,
    as_json: AsJson = False,
) -> int:
    """Write an environment's tasks as rows for verl."""
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
