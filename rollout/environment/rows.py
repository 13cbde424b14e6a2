"""An environment's tasks as dataset rows."""

from __future__ import annotations

from uuid import uuid4

import structlog

from gateway.catalogue.hidden_text import find_hidden
from gateway.catalogue.resource_tools import GET_PROMPT, READ_RESOURCE
from gateway.errors import ConfigError
from gateway.gateway import Gateway
from rollout.environment.config import Environment, SystemPart
from rollout.environment.harness import SPLITS, list_tasks
from rollout.environment.task import Task
from rollout.types import Message

log = structlog.get_logger(__name__)


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
        listed = await list_tasks(session, environment.tasks.server, split, limit=limit)
    if limit is not None and len(listed) < limit:
        raise ConfigError(
            f"{environment.name} has {len(listed)} {split} tasks, {limit} were asked for",
            key="-n",
            remedy="ask for fewer",
        )
    system = await system_message(environment, gateway)
    tasks: list[Task] = []
    for item in listed:
        opening: list[Message] = [{"role": "user", "content": item.prompt}] if item.prompt is not None else []
        if not system and not opening:
            raise ConfigError(
                f"task {item.task!r} has no prompt, and the environment no system message: its row would be empty",
                file=environment.file,
                key="system",
                remedy="let `tasks` give prompts, or write a system message",
            )
        prompt = (*system, *opening)
        tasks.append(
            Task(environment=environment.name, task=item.task, seed=item.seed, prompt=prompt, answer=item.answer)
        )
    return tasks


async def system_message(environment: Environment, gateway: Gateway) -> list[Message]:
    """The environment's system message, as a list of at most one.

    Raises:
        ConfigError: a server does not have what it is to contribute, or refuses it.
        GatewayError: the world broke.
    """
    if not environment.system:
        return []
    parts = [
        await _part(environment, gateway, part, f"system.{index}") for index, part in enumerate(environment.system)
    ]
    text = "\n\n".join(parts)
    for found in find_hidden(text, "system message"):
        log.warning("system.hidden_text", environment=environment.name, finding=str(found))
    return [{"role": "system", "content": text}]


async def _part(environment: Environment, gateway: Gateway, part: SystemPart, key: str) -> str:
    if part.text is not None:
        return part.text
    if part.instructions_of is not None:
        instructions = gateway.instructions.get(part.instructions_of)
        if not instructions:
            problem = f"server {part.instructions_of!r} gives no instructions"
            raise ConfigError(problem, file=environment.file, key=key, remedy="use a text")
        return instructions
    if part.prompt is not None:
        name, arguments = GET_PROMPT, {"name": part.prompt.name, "arguments": part.prompt.arguments}
        wanted = f"prompt {part.prompt.name!r}"
    else:
        assert part.resource is not None
        name, arguments = READ_RESOURCE, {"uri": part.resource.uri}
        wanted = f"resource {part.resource.uri!r}"
    result = await gateway.fetch(part.server or "", name, arguments)
    if result.is_error:
        problem = f"server {part.server!r} refuses {wanted}: {result.text[:500]}"
        raise ConfigError(problem, file=environment.file, key=key, remedy="look at what it offers")
    return result.text
