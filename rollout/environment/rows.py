"""Build dataset rows from the tasks of an environment."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from uuid import uuid4

import structlog
from anyio import to_thread

from mcp_rollout.gateway.catalogue.hidden_text import find_hidden
from mcp_rollout.gateway.catalogue.names import Catalogue, policy_tools
from mcp_rollout.gateway.config.pydantic_errors import near
from mcp_rollout.gateway.errors import ConfigError, Faults, raise_all
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.gateway.schemas.arguments import prepare
from mcp_rollout.rollout.environment.config import Environment, SystemPart, TasksConfig
from mcp_rollout.rollout.environment.harness import ListedTask, list_tasks
from mcp_rollout.rollout.environment.matching import Match, unusable
from mcp_rollout.rollout.environment.reward_config import CUSTOM_PART, Component
from mcp_rollout.rollout.environment.task import ALL, SPLITS, Task
from mcp_rollout.rollout.environment.task_file import FileTask, read_tasks
from mcp_rollout.rollout.types import Message

log = structlog.get_logger(__name__)


async def environment_tasks(environment: Environment, gateway: Gateway, split: str, limit: int | None) -> list[Task]:
    """List the first `limit` tasks of a split, each with the prompt of its row: system message and opening message.

    Args:
        environment: its `tasks` has a file of tasks, or the server that lists them.
        gateway: the running servers of the environment.
        split: one of `SPLITS`, or `ALL`.
        limit: number of tasks; None lists all.

    Raises:
        ConfigError: the environment has no tasks, fewer than `limit` tasks, a task without any prompt, or a task of its
            file that cannot be played there.
        GatewayError: the world broke, or the `tasks` tool broke its contract.
    """
    if split not in (*SPLITS, ALL):
        raise ConfigError(f"unknown split {split!r}", key="split", remedy=f"one of {', '.join((*SPLITS, ALL))}")
    if environment.tasks is None:
        problem = "the environment names neither a file of tasks nor the server that lists them"
        raise ConfigError(problem, file=environment.file, key="tasks", remedy="add it, or give --tasks FILE")
    async with gateway.lease(trajectory=uuid4().hex, task=None, seed=0) as session:
        listed = await listed_tasks(environment.tasks, session, split, limit)
    if limit is not None and len(listed) < limit:
        problem = f"{environment.name} has {len(listed)} {split} tasks, {limit} were asked for"
        raise ConfigError(problem, key="-n", remedy="ask for fewer")
    system = await system_message(environment, gateway)
    tasks: list[Task] = []
    faults, at = Faults(), dict[tuple[str, str | None, str], list[str]]()
    for item in listed:
        with faults.collected():
            task = task_of(environment, gateway, item, system)
            if isinstance(item, FileTask):
                for each in (*unlike_text(item, environment), *problems_of(task, environment, gateway.catalogue)):
                    at.setdefault((each.problem, each.key, each.remedy), []).append(item.where)
            tasks.append(task)
    raise_all([*faults, *_folded(at)])
    warn_of_writing_checks(tasks, gateway.catalogue)
    return tasks


async def listed_tasks(config: TasksConfig, session: Session, split: str, limit: int | None) -> Sequence[ListedTask]:
    """The first `limit` tasks of a split; None lists all. Raises as `environment_tasks`."""
    if config.file is not None:
        read = partial(read_tasks, config.file, split=split, test_share=config.test_share)
        return (await to_thread.run_sync(read))[:limit]
    assert config.server is not None
    listed: list[ListedTask] = []
    for each in SPLITS if split == ALL else (split,):
        listed += await list_tasks(session, config.server, each, limit=limit)
    # The limit is for both splits together, and each was asked for so many.
    return listed[:limit]


def task_of(environment: Environment, gateway: Gateway, item: ListedTask, system: list[Message]) -> Task:
    if isinstance(item, FileTask):
        # Messages of a file may begin with a system message of their own.
        own = item.messages[0]["role"] == "system"
        prompt, verl = (*(() if own else system), *item.messages), item.verl
    else:
        prompt, verl = (*system, *([{"role": "user", "content": item.prompt}] if item.prompt is not None else ())), None
    if not prompt:
        problem = f"task {item.task!r} has no prompt, and the environment no system message: its row would be empty"
        remedy = "let `tasks` give prompts, or write a system message"
        raise ConfigError(problem, file=environment.file, key="system", remedy=remedy)
    server = environment.tasks.server if environment.tasks else None
    return Task(
        environment=environment.name,
        task=item.task,
        seed=item.seed,
        tools=_exposed(gateway, server, item.tools),
        later_tools=_exposed(gateway, server, item.later_tools) or (),
        prompt=prompt,
        answer=item.answer,
        setup=item.setup,
        check=item.check,
        verl=verl,
        where=item.where if isinstance(item, FileTask) else "",
    )


def unlike_text(task: FileTask | Task, environment: Environment) -> Iterator[ConfigError]:
    """The problem of an answer that is no text, which nothing that the policy says could equal."""
    config, truth = environment.reward, task.verl.ground_truth if task.verl else None
    is_json = task.is_json if isinstance(task, FileTask) else isinstance(truth, dict | list)
    # The trainer's own reward function may take what it likes.
    if is_json and config.compares_answers and config.match is not Match.JSON and CUSTOM_PART not in config.weights:
        problem = f"is an object or a list, and reward.match of {environment.name} is {config.match}"
        key = "answer" if truth is None else "reward_model.ground_truth"
        remedy = "set reward.match: json, or write the answer as text"
        yield ConfigError(problem, key=key, remedy=remedy)


def _folded(at: Mapping[tuple[str, str | None, str], Sequence[str]]) -> Iterator[ConfigError]:
    """One error for equal problems of several rows. A list of all tools is in the first only."""
    listed = set[str]()
    for (problem, key, remedy), rows in at.items():
        others = len(rows) - 1
        more = f" and {others} more row{'s' * (others > 1)}" if others else ""
        shown = "the tools are listed above" if remedy in listed else remedy
        if remedy.startswith("known tools of "):
            listed.add(remedy)
        yield ConfigError(problem, file=rows[0] + more, key=key, remedy=shown)


def problems_of(
    task: Task, environment: Environment, catalogue: Catalogue, shown: Collection[str] | None = None
) -> Iterator[ConfigError]:
    """Problems of a task's prompt, tools, calls and answer with a running environment, by the key of a file of tasks.

    Args:
        shown: exposed names of what the policy may be shown; None for all tools of the catalogue.
    """
    known = {tool.exposed_name: tool for tool in policy_tools(catalogue)}
    shown, config = known if shown is None else shown, environment.reward
    if task.prompt[-1]["role"] != "user" and environment.user is None:
        problem = "the prompt does not end in a user message, and the environment has no user to give one"
        yield ConfigError(problem, key="prompt", remedy="end it in one, or name a `user` in the environment")
    if Component.EXACT_MATCH in config.computed and not task.answer:
        problem = f"the reward of {environment.name} weighs exact_match, and the row has no ground truth"
        yield ConfigError(problem, key="answer", remedy="give each task its `answer`")
    if task.answer and config.compares_answers and (found := unusable(config.match, task.answer)):
        problem = f"reward.match of {environment.name} is {config.match}, and the answer {found[0]}"
        yield ConfigError(problem, key="answer", remedy=found[1])
    for key, named in (("tools", task.tools or ()), ("later_tools", task.later_tools)):
        for tool in dict.fromkeys(tool for tool in named if tool not in shown):
            remedy = near(tool, shown, f"tools of {environment.name}")
            yield ConfigError(f"unknown tool {tool!r}", key=key, remedy=remedy)
    for key, calls in (("setup", task.setup), ("check", task.check)):
        for number, call in enumerate(calls):
            if (tool := known.get(call.name)) is None:
                remedy = near(call.name, known, f"tools of {environment.name}")
                yield ConfigError(f"unknown tool {call.name!r}", key=f"{key}.{number}", remedy=remedy)
            elif faults := prepare(tool, dict(call.arguments), fixed=tool.fixed).faults:
                problem = f"{call.name}: {'; '.join(faults)}"
                yield ConfigError(problem, key=f"{key}.{number}.arguments", remedy="correct the arguments")


def warn_of_writing_checks(tasks: Iterable[Task], catalogue: Catalogue) -> None:
    """Log the tools of checks that are not annotated as read-only: they may change what they examine."""
    read_only = {tool.exposed_name for tool in policy_tools(catalogue) if tool.read_only}
    if others := {call.name for task in tasks for call in task.check} - read_only:
        log.warning(
            "checks call tools that are not annotated as read-only",
            tools=", ".join(sorted(others)),
            remedy="see that they change nothing; where you write the server, annotate them with readOnlyHint",
        )


def _exposed(gateway: Gateway, server: str | None, names: list[str] | None) -> tuple[str, ...] | None:
    """The exposed names of tools that `server` calls by its own; other names are exposed ones already."""
    listed = gateway.catalogue[server] if server is not None else ()
    own = {tool.name: tool.exposed_name for tool in listed if tool.role is None}
    return None if names is None else tuple(own.get(name, name) for name in names)


async def system_message(environment: Environment, gateway: Gateway) -> list[Message]:
    """Build the environment's system message, as a list of at most one message.

    Raises:
        ConfigError: a server lacks or refuses the instructions or resource that a part names.
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
    assert part.resource is not None
    source = part.resource
    result = await gateway.read_resource(source.server, source.uri)
    if result.is_error:
        problem = f"server {source.server!r} refuses resource {source.uri!r}: {result.text[:500]}"
        raise ConfigError(problem, file=environment.file, key=key, remedy="look at what it offers")
    return result.text
