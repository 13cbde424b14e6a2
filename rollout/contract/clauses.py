"""One function for each clause: returns what was seen, or raises `Broken`, `Untested`, or what the gateway raises."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from gateway.errors import HarnessError
from gateway.gateway import Gateway
from gateway.leases.session import Session
from gateway.types import Role
from rollout.contract.answers import Elicited, Reply, Score, Silent, Snapshot, Turn
from rollout.contract.bench import Bench, Broken, Untested
from rollout.contract.play import Play, difference, view
from rollout.environment.config import DEFAULT_ASSISTANT_TURNS, LimitsConfig
from rollout.environment.harness import ask
from rollout.environment.rows import SPLITS
from rollout.environment.validation import missing_roles
from rollout.types import Message

LISTED = 1_000_000
FULL = 1 - 1e-9
_ARGUMENTS = {
    Role.RESET: {"task", "seed"},
    Role.REPLY: {"seq", "message"},
    Role.SCORE: {"messages"},
    Role.RESTORE: {"state"},
    Role.TASKS: {"split", "limit"},
    Role.EXPERT: {"task", "seed"},
}
"""By which a tool is taken for one of the harness's that lost its mark; names alone say too little."""


async def roles(bench: Bench) -> str:
    async with bench.lease(None) as session:
        if missing := missing_roles(bench.environment, session):
            raise missing[0]
        tasks = bench.environment.tasks
        if tasks is not None and not session.has(Role.TASKS, tasks.server):
            raise Broken(f"tasks.server: server {tasks.server!r} has no tool with the role tasks")
    return "all there"


async def hidden(bench: Bench) -> str:
    harness = [tool for tools in bench.gateway.catalogue.values() for tool in tools if tool.role]
    async with bench.lease(None) as session:
        for tool in harness:
            if tool.exposed_name in session.tools:
                raise Broken(f"the policy is shown {tool.server}/{tool.name}")
            result = await session.call(tool.exposed_name, {})
            if not result.is_error or "Unknown tool" not in result.text:
                raise Broken(f"the policy reached {tool.server}/{tool.name}")
        for tool in session.tools.values():
            for role, arguments in _ARGUMENTS.items():
                taken = set(tool.input_schema.get("properties", {}))
                if tool.name == role and arguments <= taken:
                    raise Broken(f"the policy is shown {tool.server}/{tool.name}, which takes the arguments of {role}")
    return f"{len(harness)} harness tools, none within the policy's reach"


async def tasks(bench: Bench) -> str:
    if bench.environment.tasks is None:
        raise Untested("the environment names no tasks.server")
    listed: dict[str, set[tuple[str, int]]] = {}
    async with bench.lease(None) as session:
        for split in SPLITS:
            items = await bench.tasks(session, split, LISTED)
            if not items:
                raise Broken(f"{split} lists no task")
            listed[split] = set()
            for index, item in enumerate(items):
                if (item.task, item.seed) in listed[split]:
                    raise Broken(f"{split} lists ({item.task!r}, {item.seed}) twice, the second time at {index}")
                listed[split].add((item.task, item.seed))
            if (found := difference(items[:1], await bench.tasks(session, split, 1))) is not None:
                raise Broken(f"{split} with limit 1 is not the first of all its tasks: {found}")
            again = await bench.tasks(session, split, LISTED)
            if (found := difference(items, again)) is not None:
                raise Broken(f"{split} lists other tasks the second time: {found}")
    if shared := listed["train"] & listed["test"]:
        raise Broken(f"{len(shared)} tasks are in both splits, for example {sorted(shared)[0]}")
    return ", ".join(f"{len(found)} {split}" for split, found in listed.items())


async def reset(bench: Bench, elsewhere: Gateway) -> str:
    for item in bench.items:
        seen: list[object] = []
        for gateway in (bench.gateway, bench.gateway, elsewhere):
            async with bench.lease(item, gateway) as session:
                world = await view(bench.environment, session, item)
                await session.reset(item.task)  # in the middle of a trajectory, too
                again = await view(bench.environment, session, item)
            if (found := difference(world, again)) is not None:
                raise Broken(f"task {item.task!r}, reset twice in a trajectory, differs at {found}")
            seen.append([world, await bench.solo(item, gateway)])
        for other, where in ((seen[1], "in another trajectory"), (seen[2], "in another process")):
            if (found := difference(seen[0], other)) is not None:
                raise Broken(f"task {item.task!r}, reset {where}, differs at {found}")
    return f"{len(bench.items)} tasks, each in three trajectories and two processes"


async def opening(bench: Bench) -> str:
    openers = [server for server in bench.environment.servers if bench.gateway.catalogue.get(server)]
    checked = 0
    for item in bench.items:
        async with bench.lease(item) as session:
            for server in [server for server in openers if session.has(Role.START, server)]:
                said = await bench.opening(session, server)
                if (again := await bench.opening(session, server)) != said:
                    raise Broken(f"{server} began {said!r}, and asked again {again!r}")
                speaks = bench.environment.user is None or bench.environment.user.server == server
                if speaks and item.prompt is not None and said != item.prompt:
                    raise Broken(f"task {item.task!r}: {server} begins {said!r}, its row says {item.prompt!r}")
                checked += 1
    if not checked:
        raise Untested("no server has a start tool")
    return f"{checked} openings"


async def reply(bench: Bench) -> str:
    if bench.environment.user is None:
        raise Untested("the environment has no user")
    async with bench.lease(bench.items[0]) as session:
        await bench.opening(session, bench.environment.user.server)
        await _refused(bench, session, 2, "before reply 1")
        await _refused(bench, session, 0, "before reply 1")
        first = await bench.reply(session, 1, "Hello.")
        for message in ("Hello.", "Something else entirely."):
            if (again := await bench.reply(session, 1, message)) != first:
                raise Broken(f"reply 1 was {first.message!r}, and asked again {again.message!r}")
        await _refused(bench, session, 3, "after reply 1")
        if first.done:
            return "one turn, asked for three times"
        second = await _at_once(bench, session, 2)
        if not second.done:
            await bench.reply(session, 3, "Go on.")  # the next one: nothing was skipped or doubled
        if await bench.reply(session, 1, "Hello.") != first:
            raise Broken("reply 1 was another one after reply 2")
    return "repeated, repeated at the same time, and jumps refused"


async def _refused(bench: Bench, session: Session, seq: int, when: str) -> None:
    try:
        answer = await bench.reply(session, seq, "Hello.")
    except HarnessError as error:
        if "was refused" in str(error):
            return
        raise
    raise Broken(f"reply {seq} {when} was answered with {answer.message!r} instead of being refused")


async def _at_once(bench: Bench, session: Session, seq: int) -> Reply:
    answers: list[Reply] = []
    problems: list[Exception] = []

    async def one() -> None:
        try:
            answers.append(await bench.reply(session, seq, "Go on."))
        except HarnessError as error:
            problems.append(error)

    async with anyio.create_task_group() as asking:
        for _ in range(3):
            asking.start_soon(one)
    if problems:
        raise Broken(f"reply {seq}, asked for three times at once: {problems[0]}")
    if any(answer != answers[0] for answer in answers):
        raise Broken(f"reply {seq}, asked for three times at once, was {[answer.message for answer in answers]}")
    return answers[0]


async def elicit(bench: Bench) -> str:
    if bench.environment.elicitation is None:
        raise Untested("the environment names no elicitation.server")
    server = bench.environment.elicitation.server
    schema = {"type": "object", "properties": {"answer": {"type": "string"}}}
    async with bench.lease(bench.items[0]) as session:

        async def one(question: str) -> Elicited:
            arguments = {"seq": 1, "message": question, "schema": schema, "server": server, "tool": "any"}
            return (await ask(session, Role.ELICIT, arguments, Elicited, server=server))[0]

        first = await one("What is your answer?")
        if first.action == "accept" and first.content is None:
            raise Broken("the question was accepted without content")
        if (again := await one("Something else?")) != first:
            raise Broken(f"question 1 was answered with {first.action}, and asked again with {again.action}")
    return f"question 1: {first.action}"


async def score(bench: Bench) -> str:
    server = bench.environment.reward.server
    if server is None:
        raise Untested("the environment names no reward.server")
    seen: list[float] = []
    for item in bench.items:
        async with bench.lease(item) as session:
            play = await bench.play(session, item)
            silent = [*play.messages, {"role": "assistant", "content": ""}]
            before = [await _judged(bench, session, messages, server) for messages in (play.messages, silent)]
            while await play.step():
                pass
            after = await _judged(bench, session, play.messages, server)
            seen += [found.score for found in (*before, after)]
    return f"{len(seen)} scores from {min(seen):g} to {max(seen):g}"


async def _judged(bench: Bench, session: Session, messages: Sequence[Message], server: str) -> Score:
    declared = set(bench.environment.reward.parts)
    found, _ = await ask(session, Role.SCORE, {"messages": messages}, Score, server=server)
    if missing := sorted(declared - found.parts.keys()):
        raise Broken(f"the parts {missing} of reward.parts are missing; there are {sorted(found.parts)}")
    if undeclared := sorted(found.parts.keys() - declared):
        raise Broken(f"the parts {undeclared} are not in the environment's reward.parts")
    again, _ = await ask(session, Role.SCORE, {"messages": messages}, Score, server=server)
    if (differs := difference(found, again)) is not None:
        raise Broken(f"asked twice about the same messages, the score differs at {differs}")
    return found


async def expert(bench: Bench) -> str:
    for item in bench.items:
        async with bench.lease(item) as session:
            turns = await bench.expert(session, item)
            if turns is None:
                raise Untested("no expert tool on a tasks.server")
            play = Play(bench.environment, session, item, turns)
            await play.whole()
            found = await play.score()
        if beyond := beyond_limits(turns, bench.environment.limits):
            raise Broken(f"task {item.task!r}: {beyond}")
        # A server may say no to a call that fits, and the right thing may be to find that out: the score decides.
        if play.misfits:
            raise Broken(f"task {item.task!r}: a call of the expert cannot be made: {play.misfits[0]}")
        if found is not None and found.score < FULL:
            raise Broken(f"task {item.task!r}: the expert scores {found.score:g}, parts {found.parts}")
    return f"{len(bench.items)} tasks"


def beyond_limits(turns: Sequence[Turn], limits: LimitsConfig) -> str | None:
    """What of a script the environment's own limits would cut off."""
    most = limits.assistant_turns or DEFAULT_ASSISTANT_TURNS
    calls = [len(turn.calls or ()) for turn in turns]
    said = sum(not count for count in calls)
    for needed, allowed, key in (
        (len(turns), most, "assistant_turns"),
        (sum(calls), limits.tool_calls, "tool_calls"),
        (max(calls, default=0), limits.parallel_calls, "parallel_calls"),
        (said, limits.user_turns, "user_turns"),
    ):
        if allowed is not None and needed > allowed:
            return f"the expert needs {needed}, limits.{key} allows {allowed}"
    return None


async def isolation(bench: Bench) -> str:
    first, second = bench.items[0], bench.items[-1]
    alone = [await bench.solo(first), await bench.solo(second)]
    async with bench.lease(first) as one, bench.lease(second) as other:
        plays = [await bench.play(one, first), await bench.play(other, second)]
        going = [True, True]
        while any(going):
            going = [await play.step() for play in plays]
        together = [(play.seen(user=not bench.user_varies), await play.score()) for play in plays]
    for item, solo, mixed in zip((first, second), alone, together, strict=True):
        if (found := difference(solo, mixed)) is not None:
            raise Broken(f"task {item.task!r}, alone and taking turns with another, differs at {found}")
    return "two trajectories, turn by turn"


async def release(bench: Bench) -> str:
    item = bench.items[0]
    async with bench.lease(item) as session:
        fresh = await view(bench.environment, session, item)
        play = await bench.play(session, item)
        await play.step()
        for server in bench.environment.servers:
            for _ in range(2):
                if session.has(Role.RELEASE, server):
                    await ask(session, Role.RELEASE, {}, Silent, server=server)
        await session.reset(item.task)
        if (found := difference(fresh, await view(bench.environment, session, item))) is not None:
            raise Broken(f"after release and reset the world differs at {found}")
    return "twice, then reset"


async def snapshot(bench: Bench) -> str:
    item = bench.items[0]
    async with bench.lease(item) as session, bench.lease(item) as other:
        both = {Role.SNAPSHOT, Role.RESTORE}
        servers = [name for name in bench.environment.servers if all(session.has(role, name) for role in both)]
        if not servers:
            raise Untested("no server has both snapshot and restore")
        before = await view(bench.environment, session, item)
        states = {
            server: (await ask(session, Role.SNAPSHOT, {}, Snapshot, server=server))[0].state for server in servers
        }
        play = await bench.play(session, item)
        while await play.step():
            pass
        for name, leased in (("it", session), ("another trajectory", other)):
            for server in servers:
                await ask(leased, Role.RESTORE, {"state": states[server]}, Silent, server=server)
            if (found := difference(before, await view(bench.environment, leased, item))) is not None:
                raise Broken(f"restored in {name}, the world differs at {found}")
        if bench.environment.user is not None and bench.environment.user.server in servers:
            await _counts_on(bench, session, play.replies)
            await _counts_on(bench, other, 0)
    return f"restored in its own and in another trajectory: {', '.join(servers)}"


async def _counts_on(bench: Bench, session: Session, given: int) -> None:
    """That after a restore the next reply is the one after those that were given, whatever the world is now."""
    try:
        await bench.reply(session, given + 1, "Hello.")
    except HarnessError as error:
        raise Broken(f"restored after {given} replies, reply {given + 1} was not answered: {error}") from error
