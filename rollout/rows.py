"""An environment's tasks as dataset rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from gateway.gateway import Gateway
from pydantic import BaseModel

from gateway.errors import ConfigError
from gateway.types import Role
from rollout.config import Environment
from rollout.harness import ask
from rollout.task import Task
from rollout.types import Message

SPLITS = ("train", "test")

_MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string())])
# Spelt out, so that a column that is null in every row still has its type, and two files can be concatenated.
SCHEMA = pa.schema(
    [
        ("data_source", pa.string()),
        ("agent_name", pa.string()),
        ("prompt", pa.list_(_MESSAGE)),
        ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
        (
            "extra_info",
            pa.struct(
                [
                    ("index", pa.int64()),
                    ("split", pa.string()),
                    (
                        "mcp",
                        pa.struct(
                            [
                                ("environment", pa.string()),
                                ("task", pa.string()),
                                ("seed", pa.int64()),
                                ("tools", pa.list_(pa.string())),
                            ]
                        ),
                    ),
                    # What verl's stock tool_agent hands to our tool class, see rollout/verl/stock_session.py.
                    ("tools_kwargs", pa.struct([("mcp", pa.struct([("task", pa.string()), ("seed", pa.int64())]))])),
                ]
            ),
        ),
    ]
)


class _Task(BaseModel):
    task: str
    seed: int
    prompt: str | None = None


class _Tasks(BaseModel):
    tasks: list[_Task]


async def environment_tasks(environment: Environment, gateway: Gateway, split: str, limit: int | None) -> list[Task]:
    """The first `limit` tasks of a split, with the prompts that rows hold: system message, then opening message.

    Raises:
        ConfigError: the environment does not say who lists its tasks, or has fewer than `limit`.
        GatewayError: the world broke, or the `tasks` tool answered off contract.
    """
    if split not in SPLITS:
        raise ConfigError(f"unknown split {split!r}", key="split", remedy=f"one of {', '.join(SPLITS)}")
    if environment.tasks is None:
        raise ConfigError(
            "the environment does not say which server lists its tasks", file=environment.name, key="tasks.server"
        )
    async with gateway.lease(trajectory=uuid4().hex, task=None, seed=0) as session:
        arguments = {"split": split, "limit": limit or 1_000_000}
        answer, _ = await ask(session, Role.TASKS, arguments, _Tasks, server=environment.tasks.server)
    listed = answer.tasks
    if limit is not None and len(listed) < limit:
        raise ConfigError(
            f"{environment.name} has {len(listed)} {split} tasks, {limit} were asked for",
            key="-n",
            remedy="ask for less",
        )
    system = system_message(environment, gateway)
    tasks: list[Task] = []
    for item in listed:
        opening: list[Message] = [{"role": "user", "content": item.prompt}] if item.prompt is not None else []
        tasks.append(Task(environment=environment.name, task=item.task, seed=item.seed, prompt=(*system, *opening)))
    return tasks


def system_message(environment: Environment, gateway: Gateway) -> list[Message]:
    """The environment's system message, as a list of at most one."""
    if environment.system is None:
        return []
    if environment.system.text is not None:
        return [{"role": "system", "content": environment.system.text}]
    instructions = gateway.instructions.get(environment.system.instructions_of or "")
    if not instructions:
        raise ConfigError(
            f"server {environment.system.instructions_of!r} gives no instructions",
            file=environment.name,
            key="system.instructions_of",
            remedy="use system.text",
        )
    return [{"role": "system", "content": instructions}]


def write_parquet(path: Path, tasks: list[Task], *, split: str, agent: str) -> None:
    """Write rows for verl; the file appears whole or not at all.

    Raises:
        ConfigError: the file cannot be written.
    """
    rows = [_row(index, task, split, agent) for index, task in enumerate(tasks)]
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), partial)
        partial.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror or error}", file=path, key="-o") from error


def _row(index: int, task: Task, split: str, agent: str) -> dict[str, Any]:
    mcp = {"environment": task.environment, "task": task.task, "seed": task.seed, "tools": task.tools}
    return {
        "data_source": task.environment,
        "agent_name": agent,
        "prompt": list(task.prompt),
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {
            "index": index,
            "split": split,
            "mcp": mcp,
            "tools_kwargs": {"mcp": {"task": task.task, "seed": task.seed}},
        },
    }
