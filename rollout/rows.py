"""An environment's tasks as dataset rows."""

from __future__ import annotations

from uuid import uuid4

from pydantic import BaseModel

from gateway.errors import ConfigError
from gateway.gateway import Gateway
from gateway.types import Role
from rollout.config import Environment
from rollout.harness import ask
from rollout.task import Task
from rollout.types import Message

SPLITS = ("train", "test")


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
            "the environment does not say which server lists its tasks", file=environment.file, key="tasks.server"
        )
    async with gateway.lease(trajectory=uuid4().hex, task=None, seed=0) as session:
        arguments = {"split": split, "limit": limit or 1_000_000}
        answer, _ = await ask(session, Role.TASKS, arguments, _Tasks, server=environment.tasks.server)
    listed = answer.tasks
    if limit is not None and len(listed) < limit:
        raise ConfigError(
            f"{environment.name} has {len(listed)} {split} tasks, {limit} were asked for",
            key="-n",
            remedy="ask for fewer",
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
            file=environment.file,
            key="system.instructions_of",
            remedy="use system.text",
        )
    return [{"role": "system", "content": instructions}]
