"""Clauses about single answers of harness tools, one function each.

Each returns what it observed, or raises `ClauseFailed`, `ClauseUntested`, or an error of the gateway.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from mcp_rollout.gateway.errors import ConfigError, GatewayError, HarnessError
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.gateway.types import CallFault, Role
from mcp_rollout.rollout.contract import calls
from mcp_rollout.rollout.contract.calls import Reply, Score
from mcp_rollout.rollout.contract.play import CheckSetup, SetupFailed, difference, neutral
from mcp_rollout.rollout.contract.report import Clause
from mcp_rollout.rollout.engines.rehearsal import idle_worlds, pays_for_checks_alone, place
from mcp_rollout.rollout.environment.config import DEFAULT_ASSISTANT_TURNS
from mcp_rollout.rollout.environment.harness import ListedTask, list_tasks
from mcp_rollout.rollout.environment.rows import environment_tasks, system_message, task_of
from mcp_rollout.rollout.environment.task import ALL, SPLITS, question
from mcp_rollout.rollout.environment.validation import missing_roles
from mcp_rollout.rollout.loop.world_calls import examine
from mcp_rollout.rollout.types import Message

_ARGUMENTS = {
    Role.RESET: {"task", "seed"},
    Role.REPLY: {"seq", "message"},
    Role.SCORE: {"messages"},
    Role.RESTORE: {"state"},
    Role.TASKS: {"split", "limit"},
    Role.EXPERT: {"task", "seed"},
}
"""Arguments by which a tool is recognised as a harness tool that lost its mark; a name alone proves too little."""


_WORLDS_S = 600.0
"""Seconds for the worlds of all tasks that are not played."""
_SHOWN = 5
"""The most tasks that one observation names."""
_PREPARE = "correct that `setup`: in a world just made, each call must succeed and return what the task says"
_CHECK = (
    "change `check` so that it is false at the start, give a `setup` that makes it false, or ask for an `answer` too"
)


class ClauseFailed(Exception):
    """The clause is not kept; `str()` is the observation, `remedy` replaces that of the clause."""

    def __init__(self, problem: str, *, remedy: str | None = None) -> None:
        self.remedy = remedy
        super().__init__(problem)


class ClauseDoubtful(Exception):
    """The clause is kept, and what was seen may be a hole all the same; `remedy` says when it is none."""

    def __init__(self, seen: str, *, remedy: str) -> None:
        self.remedy = remedy
        super().__init__(seen)


class ClauseUntested(Exception):
    """The clause cannot be examined here; `str()` is the reason."""


def expect_same(one: object, other: object, what: str) -> None:
    """Raise ClauseFailed where two observations differ; `what` begins the message."""
    if (found := difference(one, other)) is not None:
        raise ClauseFailed(f"{what} differs at {found}")


async def roles(setup: CheckSetup) -> str:
    async with setup.lease(None) as session:
        if missing := missing_roles(setup.environment, session):
            raise missing[0]
        tasks = setup.environment.tasks
        if tasks is not None and not tasks.file and not session.has(Role.TASKS, tasks.server or ""):
            raise ClauseFailed(f"tasks.server: server {tasks.server!r} has no tool with the role tasks")
    return "all there"


async def hidden(setup: CheckSetup) -> str:
    harness = [tool for tools in setup.gateway.catalogue.values() for tool in tools if tool.role]
    async with setup.lease(None) as session:
        for tool in harness:
            if tool.exposed_name in session.tools:
                raise ClauseFailed(f"the policy is shown {tool.server}/{tool.name}")
            result = await session.call(tool.exposed_name, {})
            if result.fault is not CallFault.UNKNOWN_TOOL:
                raise ClauseFailed(f"the policy reached {tool.server}/{tool.name}")
        for tool in session.tools.values():
            for role, arguments in _ARGUMENTS.items():
                taken = set(tool.input_schema.get("properties", {}))
                if tool.name == role and arguments <= taken:
                    problem = f"the policy is shown {tool.server}/{tool.name}, which takes the arguments of {role}"
                    raise ClauseFailed(problem)
    return f"{len(harness)} harness tools, none within the policy's reach"


async def tasks(setup: CheckSetup) -> str:
    named = setup.environment.tasks
    if named is None:
        raise ClauseUntested("the environment has no tasks")
    if named.file is not None:
        # Compared with the tools and the reward of the environment.
        found = await environment_tasks(setup.environment, setup.gateway, ALL, None)
        repeated = len(found) - len({question(task.prompt) for task in found})
        return f"{len(found)} in the file, {repeated} of which repeat the prompt of another"
    server = named.server or ""
    system = await system_message(setup.environment, setup.gateway)
    listed: dict[str, set[tuple[str, int]]] = {}
    async with setup.lease(None) as session:
        for split in SPLITS:
            items = await list_tasks(session, server, split)
            if not items:
                raise ClauseFailed(f"{split} lists no task")
            listed[split] = set()
            for index, item in enumerate(items):
                try:
                    task_of(setup.environment, setup.gateway, item, system)
                except ConfigError as problem:
                    raise ClauseFailed(f"{split}: {problem.problem}", remedy=problem.remedy) from problem
                if (item.task, item.seed) in listed[split]:
                    raise ClauseFailed(f"{split} lists ({item.task!r}, {item.seed}) twice, the second time at {index}")
                listed[split].add((item.task, item.seed))
            first = await list_tasks(session, server, split, limit=1)
            expect_same(items[:1], first, f"{split} with limit 1, compared with the first of all its tasks,")
            expect_same(items, await list_tasks(session, server, split), f"{split}, listed a second time,")
    if shared := listed["train"] & listed["test"]:
        raise ClauseFailed(f"{len(shared)} tasks are in both splits, for example {sorted(shared)[0]}")
    return ", ".join(f"{len(found)} {split}" for split, found in listed.items())


async def setups(setup: CheckSetup) -> str:
    """Prepare the world of each task once: of those to play, and of the others, whose checks are made as well.

    Raises:
        ClauseFailed: calls of a task's `setup` fail; they are in `setup.unprepared` from now on.
    """
    for item in setup.items:
        try:
            async with setup.lease(item):
                pass
        except SetupFailed as problem:
            setup.unprepared.append(str(problem))
        except GatewayError:  # of the reset, or of a server that ended: the clauses that play the task say so
            pass
    setup.progress(f"{Clause.TASKS}: worlds of the other {len(setup.others)}")
    setup.idle = await idle_worlds(setup.environment, setup.gateway, setup.others, seconds=_WORLDS_S)
    if failed := [*setup.unprepared, *setup.idle.unprepared]:
        raise ClauseFailed("\n".join(first_of(failed)), remedy=_PREPARE)
    return "all prepared"


def first_of(texts: Sequence[str]) -> list[str]:
    """The first few, and the number of the others."""
    more = len(texts) - _SHOWN
    return [*texts[:_SHOWN], *([f"and {more} more"] if more > 0 else ())]


async def opening(setup: CheckSetup) -> str:
    user = setup.environment.user
    checked = 0
    for item in setup.items:
        async with setup.lease(item) as session:
            for server in [server for server in setup.environment.servers if session.has(Role.START, server)]:
                message = await calls.start(session, server)
                if (again := await calls.start(session, server)) != message:
                    raise ClauseFailed(f"{server} began {message!r}, and asked again {again!r}")
                speaks = user is None or user.server == server
                if speaks and item.prompt is not None and message != item.prompt:
                    problem = f"task {item.task!r}: {server} begins {message!r}, its row says {item.prompt!r}"
                    raise ClauseFailed(problem)
                checked += 1
    if not checked:
        raise ClauseUntested("no server has a start tool")
    return f"{checked} openings"


async def reply(setup: CheckSetup) -> str:
    if setup.environment.user is None:
        raise ClauseUntested("the environment has no user")
    server = setup.environment.user.server
    async with setup.lease(setup.items[0]) as session:
        await calls.start(session, server)
        await _expect_refusal(session, server, 2, "before reply 1")
        await _expect_refusal(session, server, 0, "before reply 1")
        first = await calls.reply(session, server, 1, "Hello.")
        for message in ("Hello.", "Something else entirely."):
            if (again := await calls.reply(session, server, 1, message)) != first:
                raise ClauseFailed(f"reply 1 was {first.message!r}, and asked again {again.message!r}")
        await _expect_refusal(session, server, 3, "after reply 1")
        if first.done:
            return "one turn, asked for three times"
        # The gateway asks again for a reply whose answer was lost, perhaps while the first request is still at work.
        second = await _concurrent_replies(session, server, 2)
        if not second.done:
            await calls.reply(session, server, 3, "Go on.")  # succeeds only if no number was skipped or used twice
        if await calls.reply(session, server, 1, "Hello.") != first:
            raise ClauseFailed("reply 1 was another one after reply 2")
    seen = "repeated, repeated at the same time, and jumps refused"
    return seen if setup.user_varies else f"{seen}; {await _ending(setup, server)}"


async def _ending(setup: CheckSetup, server: str) -> str:
    """When the user ends the conversation: by the end of the script, or within as many replies as there are turns."""
    most = setup.environment.limits.assistant_turns or DEFAULT_ASSISTANT_TURNS
    async with setup.lease(setup.items[0]) as session:
        play = await setup.play(session, setup.items[0])
        await play.finish()
        while not play.over and play.replies < most:
            play.replies += 1
            play.over = (await calls.reply(session, server, play.replies, "Goodbye.")).done
    if not play.over:
        raise ClauseFailed(f"the user never ends: no `done` in {play.replies} replies, as many as there may be turns")
    return f"done with reply {play.replies}"


async def _expect_refusal(session: Session, server: str, seq: int, when: str) -> None:
    try:
        answer = await calls.reply(session, server, seq, "Hello.")
    except HarnessError as error:
        if error.refused:
            return
        raise
    raise ClauseFailed(f"reply {seq} {when} was answered with {answer.message!r} instead of being refused")


async def _concurrent_replies(session: Session, server: str, seq: int) -> Reply:
    """Ask for the same reply three times at once."""
    answers: list[Reply] = []
    problems: list[GatewayError] = []

    async def ask() -> None:
        try:
            answers.append(await calls.reply(session, server, seq, "Go on."))
        except GatewayError as error:  # raised after the group, which would wrap it in an ExceptionGroup
            problems.append(error)

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(ask)
    for problem in problems:
        if not isinstance(problem, HarnessError):  # the server ended: that is not an answer of its
            raise problem
    if problems:
        raise ClauseFailed(f"reply {seq}, asked for three times at once: {problems[0]}")
    if any(answer != answers[0] for answer in answers):
        raise ClauseFailed(f"reply {seq}, asked for three times at once, was {[answer.message for answer in answers]}")
    return answers[0]


async def output(setup: CheckSetup) -> str:
    for each in setup.connections:
        if each.stray:
            raise ClauseFailed(f"{each.server} wrote to its standard output, and not a message: {each.stray!r}")
    return "messages only"


async def elicit(setup: CheckSetup) -> str:
    if setup.environment.elicitation is None:
        raise ClauseUntested("the environment names no elicitation.server")
    server = setup.environment.elicitation.server
    async with setup.lease(setup.items[0]) as session:
        first = await calls.elicit(session, server, 1, "What is your answer?")
        if first.action == "accept" and first.content is None:
            raise ClauseFailed("the question was accepted without content")
        if (again := await calls.elicit(session, server, 1, "Something else?")) != first:
            raise ClauseFailed(f"question 1 was answered with {first.action}, and asked again with {again.action}")
    return f"question 1: {first.action}"


async def score(setup: CheckSetup) -> str:
    server = setup.environment.reward.server
    checked = await _checks(setup)
    if server is None:
        if checked:
            return checked
        raise ClauseUntested("the environment names no reward.server")
    seen: list[float] = []
    for item in setup.items:
        async with setup.lease(item) as session:
            play = await setup.play(session, item)
            silent = [*play.messages, {"role": "assistant", "content": ""}]
            found = [await _checked_score(setup, session, messages, server) for messages in (play.messages, silent)]
            await play.finish()
            found.append(await _checked_score(setup, session, play.messages, server))
            seen += [each.score for each in found]
    return f"{len(seen)} scores from {min(seen):g} to {max(seen):g}" + (f"; {checked}" if checked else "")


async def _checks(setup: CheckSetup) -> str:
    """The tasks' checks in worlds that no policy has touched, twice for tasks to play; empty where there are none."""
    checked = [item for item in setup.items if item.check]
    held: list[ListedTask] = []
    for item in checked:
        async with setup.lease(item) as session:
            one, other = [
                [(each.holds, neutral(session, each.call.text)) for each in await examine(session, item.check)]
                for _ in range(2)
            ]
        expect_same(one, other, f"task {item.task!r}: what the checks return, asked twice,")
        if all(holds for holds, _ in one):
            held.append(item)
    held += [setup.others[number] for number in setup.idle.held]
    if paid := [place(item) for item in held if pays_for_checks_alone(setup.environment, item)]:
        problem = "all checks hold before any turn, so that doing nothing is rewarded: "
        raise ClauseFailed(problem + "; ".join(first_of(paid)), remedy=_CHECK)
    count = len(checked) + sum(bool(item.check) for item in setup.others)
    said = f"tasks with checks: {count}; all of a task's hold before any turn in {len(held)}"
    return said + (f"; not examined: {setup.idle.left}" if setup.idle.left else "") if count else ""


async def _checked_score(setup: CheckSetup, session: Session, messages: Sequence[Message], server: str) -> Score:
    declared = set(setup.environment.reward.parts)
    found = await calls.score(session, server, messages)
    if missing := sorted(declared - found.parts.keys()):
        raise ClauseFailed(f"the parts {missing} of reward.parts are missing; there are {sorted(found.parts)}")
    if undeclared := sorted(found.parts.keys() - declared):
        raise ClauseFailed(f"the parts {undeclared} are not in the environment's reward.parts")
    again = await calls.score(session, server, messages)
    expect_same(found, again, "asked twice about the same messages, the score")
    return found
