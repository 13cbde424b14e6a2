"""Build dataset rows from the tasks of an environment."""

from __future__ import annotations

from uuid import uuid4

import structlog

from gateway.catalogue.hidden_text import find_hidden
from gateway.catalogue.resource_tools import GET_PROMPT, READ_RESOURCE
from gateway.errors import ConfigError, Faults, raise_all
from gateway.gateway import Gateway
from rollout.environment.config import Environment, SystemPart
from rollout.environment.harness import ALL, SPLITS, ListedTask, list_tasks
from rollout.environment.task import Task
from rollout.types import Message

log = structlog.get_logger(__name__)


async def environment_tasks(environment: Environment, gateway: Gateway, split: str, limit: int | None) -> list[Task]:
    """List the first `limit` tasks of a split, each with the prompt of its row: system message and opening message.

    Args:
        environment: its `tasks.server` lists the tasks.
        gateway: the running servers of the environment.
        split: one of `SPLITS`, or `ALL`.
        limit: number of tasks; None lists all.

    Raises:
        ConfigError: the environment has no `tasks.server`, fewer than `limit` tasks, or a task without any prompt.
        GatewayError: the world broke, or the `tasks` tool broke its contract.
    """
    if split not in (*SPLITS, ALL):
        raise ConfigError(f"unknown split {split!r}", key="split", remedy=f"one of {', '.join((*SPLITS, ALL))}")
    if environment.tasks is None:
        problem = "the environment does not name the server that lists its tasks"
        raise ConfigError(problem, file=environment.file, key="tasks.server")
    server = environment.tasks.server
    async with gateway.lease(trajectory=uuid4().hex, task=None, seed=0) as session:
        listed: list[ListedTask] = []
        for each in SPLITS if split == ALL else (split,):
            listed += await list_tasks(session, server, each, limit=limit)
    # The limit is for both splits together, and each was asked for so many.
    listed = listed[:limit]
    if limit is not None and len(listed) < limit:
        problem = f"{environment.name} has {len(listed)} {split} tasks, {limit} were asked for"
        raise ConfigError(problem, key="-n", remedy="ask for fewer")
    system = await system_message(environment, gateway)
    tasks: list[Task] = []
    for item in listed:
        opening: list[Message] = [{"role": "user", "content": item.prompt}] if item.prompt is not None else []
        if not system and not opening:
            problem = f"task {item.task!r} has no prompt, and the environment no system message: its row would be empty"
            remedy = "let `tasks` give prompts, or write a system message"
            raise ConfigError(problem, file=environment.file, key="system", remedy=remedy)
        fields = item.model_dump() | {"environment": environment.name, "prompt": (*system, *opening)}
        fields["tools"] = _exposed(gateway, server, item.tools)
        fields["later_tools"] = _exposed(gateway, server, item.later_tools)
        tasks.append(Task.model_validate(fields))
    return tasks


def _exposed(gateway: Gateway, server: str, names: list[str] | None) -> list[str] | None:
    """The exposed names of tools that `server` calls by its own; other names are exposed ones already."""
    own = {tool.name: tool.exposed_name for tool in gateway.catalogue[server] if tool.role is None}
    return None if names is None else [own.get(name, name) for name in names]


async def system_message(environment: Environment, gateway: Gateway) -> list[Message]:
    """Build the environment's system message, as a list of at most one message.

    Raises:
        ConfigError: a server lacks or refuses the instructions, prompt or resource that a part names.
        GatewayError: the world broke.
    """
    if not environment.system:
        return []
    faults = Faults()
    parts: list[str] = []
    for index, part in enumerate(environment.system):
        with faults.collected():
            parts.append(await _part(environment, gateway, part, f"system.{index}"))
    raise_all(faults)
    text = "\n\n".join(parts)
    for found in find_hidden(text, "system message"):
        log.warning("system.hidden_text", environment=environment.name, finding=str(found))
    return [{"role": "system", "content": text}]


async def _part(environment: Environment, gateway: Gateway, part: SystemPart, key: str) -> str:
    """The text of one part; `key` names it in errors."""
    if part.text is not None:
        return part.text
    if part.instructions_of is not None:
        if instructions := gateway.instructions.get(part.instructions_of):
            return instructions
        problem = f"server {part.instructions_of!r} gives no instructions"
        raise ConfigError(problem, file=environment.file, key=key, remedy="use a text")
    if part.prompt is not None:
        source, what = part.prompt, f"prompt {part.prompt.name!r}"
        tool, arguments = GET_PROMPT, {"name": part.prompt.name, "arguments": part.prompt.arguments}
    else:
        assert part.resource is not None
        source, what = part.resource, f"resource {part.resource.uri!r}"
        tool, arguments = READ_RESOURCE, {"uri": part.resource.uri}
    result = await gateway.fetch(source.server, tool, arguments)
    if result.is_error:
        problem = f"server {source.server!r} refuses {what}: {result.text[:500]}"
        raise ConfigError(problem, file=environment.file, key=key, remedy="look at what it offers")
    return result.text
