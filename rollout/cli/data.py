"""`data`: an environment's tasks as rows for verl."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import anyio
import typer

from rollout.environment.config import Environment, load_environment
from rollout.environment.parquet import write_parquet
from rollout.environment.rows import environment_tasks
from rollout.environment.startup import opened
from rollout.environment.task import Task


@dataclass(frozen=True, kw_only=True, slots=True)
class DataOptions:
    """The command's options."""

    output: Path
    split: str
    rows: int | None
    tools: tuple[str, ...] | None
    agent: str


def write_rows(name: str, environments_dir: Path, options: DataOptions, *, as_json: bool) -> int:
    environment = load_environment(name, environments_dir)
    tasks = anyio.run(_tasks, environment, options)
    write_parquet(options.output, tasks, split=options.split, agent=options.agent)
    written = {"path": str(options.output), "environment": environment.name, "split": options.split, "rows": len(tasks)}
    if as_json:
        typer.echo(json.dumps(written))
    else:
        typer.echo(f"{options.output}: {len(tasks)} {options.split} rows of {environment.name}")
    return 0


async def _tasks(environment: Environment, options: DataOptions) -> list[Task]:
    async with opened(environment, name=environment.name, source=environment.file) as gateway:
        tasks = await environment_tasks(environment, gateway, options.split, options.rows)
        if options.tools is not None:
            # Leasing is what refuses an unknown name.
            async with gateway.lease(trajectory=uuid4().hex, task=None, seed=0, tools=options.tools):
                tasks = [task.model_copy(update={"tools": options.tools}) for task in tasks]
    return tasks
