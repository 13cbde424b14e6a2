"""`data`: an environment's tasks as rows for verl."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import typer

from rollout.cli.target import opened, quiet_logs
from rollout.config import Environment, load_environment
from rollout.parquet import write_parquet
from rollout.rows import environment_tasks
from rollout.task import Task


def write_rows(
    name: str, environments_dir: Path, output: Path, split: str, rows: int | None, *, agent: str, as_json: bool
) -> int:
    environment = load_environment(name, environments_dir)
    tasks = anyio.run(_tasks, environment, split, rows)
    write_parquet(output, tasks, split=split, agent=agent)
    if as_json:
        typer.echo(
            json.dumps({"path": str(output), "environment": environment.name, "split": split, "rows": len(tasks)})
        )
    else:
        typer.echo(f"{output}: {len(tasks)} {split} rows of {environment.name}")
    return 0


async def _tasks(environment: Environment, split: str, rows: int | None) -> list[Task]:
    quiet_logs()
    async with opened(environment.gateway_config(), environment.name) as gateway:
        return await environment_tasks(environment, gateway, split, rows)
