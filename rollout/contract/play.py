"""Trajectories that the clauses play: leases, scripts, and what can be observed of a world."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from pydantic_core import to_jsonable_python

from mcp_rollout.gateway.connection.connection import Connection
from mcp_rollout.gateway.differences import differences
from mcp_rollout.gateway.errors import HarnessError, ServesWorlds
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.gateway.types import Role, ToolResult
from mcp_rollout.rollout.contract import calls
from mcp_rollout.rollout.contract.calls import Call, Score, Turn
from mcp_rollout.rollout.engines.random_arguments import plain_arguments, random_arguments
from mcp_rollout.rollout.engines.rehearsal import IdleWorlds, place
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.harness import ListedTask
from mcp_rollout.rollout.loop.world_calls import prepare
from mcp_rollout.rollout.types import Message
from mcp_rollout.rollout.volatile import VOLATILE

_READS = 12
"""The most tools that `view` calls."""
_RANDOM_CALLS = 6


class SetupFailed(Exception):
    """A call of a task's `setup` failed; `str()` names the task, the call and what the server says."""


class Play:
    """One trajectory that follows a script: `begin`, then `step` until it returns False, then `score`.

    Each raises GatewayError where the world breaks or a harness tool breaks its contract.
    """

    def __init__(self, environment: Environment, session: Session, item: ListedTask, script: Sequence[Turn]) -> None:
        self._environment, self._session, self._item, self._script = environment, session, item, script
        self._turn = 0
        self.over = False
        """Whether the user ended the conversation, or there is none to go on with."""
        self.replies = 0
        """Replies that the user gave."""
        self.messages: list[Message] = []
        self.rewards = 0.0
        """The sum of the turns' rewards."""
        self.misfits: list[str] = []
        """Calls of the script that were not sent: the tool does not exist, or its schema refuses the arguments."""

    async def begin(self) -> None:
        opening = self._item.prompt
        if self._environment.user is not None:
            opening = await calls.start(self._session, self._environment.user.server)
        self.messages = [{"role": "user", "content": opening or ""}]

    async def step(self) -> bool:
        """Play a turn; return False where the trajectory had ended before."""
        if self.over or self._turn >= len(self._script):
            return False
        turn = self._script[self._turn]
        self._turn += 1
        message: Message = {"role": "assistant", "content": turn.content or ""}
        if turn.calls:
            message["tool_calls"] = [
                {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in turn.calls
            ]
        self.messages.append(message)
        for call in turn.calls or ():
            result = await self.call(call)
            self.messages.append({"role": "tool", "name": call.name, "content": neutral(self._session, _text(result))})
        if not turn.calls:
            await self._reply(turn.content or "")
        return True

    async def call(self, call: Call) -> ToolResult:
        """Make a call and count its reward; no message tells of it."""
        result = await self._session.call(call.name, call.arguments)
        self.rewards += result.reward or 0.0
        if result.fault is not None:
            self.misfits.append(f"{call.name}: {result.text[:200]}")
        return result

    async def finish(self) -> None:
        """Play the turns that are left."""
        while await self.step():
            pass

    async def score(self) -> Score | None:
        """Return the final score; None if no server scores."""
        server = self._environment.reward.server
        return None if server is None else await calls.score(self._session, server, self.messages)

    def conversation(self, *, user: bool) -> list[Any]:
        """Return the messages for a comparison, with the user's words left out where `user` is False."""
        return [
            message if user or message["role"] != "user" else {"role": "user", "content": "*"}
            for message in self.messages
        ]

    async def _reply(self, content: str) -> None:
        if self._environment.user is None:
            self.over = True
            return
        self.replies += 1
        reply = await calls.reply(self._session, self._environment.user.server, self.replies, content)
        self.rewards += reply.reward or 0.0
        self.messages.append({"role": "user", "content": neutral(self._session, reply.message)})
        self.over = reply.done


@dataclass(kw_only=True)
class CheckSetup:
    """One environment under examination: its running servers, the tasks to play, and how to play them."""

    environment: Environment
    gateway: Gateway
    elsewhere: Gateway
    """The same servers, started a second time."""
    items: list[ListedTask] = field(default_factory=list[ListedTask])
    """Tasks to play, from the test split first; not empty once the clause `tasks` has been examined."""
    others: Sequence[ListedTask] = ()
    """The environment's other tasks: their worlds are prepared and examined once, without a turn."""
    unprepared: list[str] = field(default_factory=list[str])
    """Of those to play, what `SetupFailed` says in a first trajectory."""
    idle: IdleWorlds = field(default_factory=IdleWorlds)
    """What was found in the worlds of the others."""
    progress: Callable[[str], None] = lambda doing: None
    """Takes what is being done."""
    user_varies: bool = False
    """Whether the user is a model or a person, whose words may differ from one time to the next."""
    connections: set[Connection] = field(default_factory=set[Connection])
    """Those of all leases so far."""

    @asynccontextmanager
    async def lease(self, item: ListedTask | None, gateway: Gateway | None = None) -> AsyncGenerator[Session]:
        """A session whose servers are reset to the task, and its world prepared; neither where it is None."""
        # The reset is made here and not by the lease, so that a failed reset is not taken for a failed lease.
        chosen, seed = gateway or self.gateway, item.seed if item else 0
        async with chosen.lease(trajectory=f"check-{uuid4().hex}", task=None, seed=seed) as session:
            try:
                if item is not None:
                    await session.reset(item.task)
                    await _prepare(session, item)
                yield session
            finally:
                for server in self.environment.servers:
                    with suppress(ServesWorlds):  # whose worlds are on another host
                        self.connections.add(session.connection(server))

    async def renew(self, session: Session, item: ListedTask) -> None:
        """Reset a session in the middle of its trajectory, and prepare the task's world again if that removed it."""
        await session.reset(item.task)
        if self.has(session, Role.RESET):
            await _prepare(session, item)

    def has(self, session: Session, *roles: Role) -> bool:
        """Whether a server of the environment has one of these roles."""
        return any(session.has(role, server) for role in roles for server in self.environment.servers)

    async def expert(self, session: Session, item: ListedTask) -> list[Turn] | None:
        """Return the expert's turns; None if there is no expert."""
        tasks = self.environment.tasks
        if tasks is None or tasks.server is None or not session.has(Role.EXPERT, tasks.server):
            return None
        return await calls.expert(session, tasks.server, item)

    async def play(self, session: Session, item: ListedTask) -> Play:
        """Begin a trajectory with the expert's script, or with a random one where there is no expert."""
        script = await self.expert(session, item) or random_script(session, item)
        play = Play(self.environment, session, item, script)
        await play.begin()
        return play

    async def outcome(self, play: Play) -> tuple[list[Any], Score | None]:
        """Return the conversation and the score of a trajectory that has ended."""
        return play.conversation(user=not self.user_varies), await play.score()

    async def solo(self, item: ListedTask, gateway: Gateway | None = None) -> tuple[list[Any], Score | None]:
        """Play a whole trajectory with no other one beside it, and return its outcome."""
        async with self.lease(item, gateway) as session:
            play = await self.play(session, item)
            await play.finish()
            return await self.outcome(play)


async def _prepare(session: Session, item: ListedTask) -> None:
    try:
        await prepare(session, item.setup, where=place(item))
    except HarnessError as error:
        raise SetupFailed(error.problem) from error


def neutral(session: Session, text: str) -> str:
    """Replace what differs between trajectories by design: the id, and the directory of the lease.

    Where no server has a reset, none has a task and a seed to draw from: ids and times that change by themselves count
    as equal.
    """
    if session.lease_dir is not None:
        text = text.replace(str(session.lease_dir), "${lease.dir}")
    text = text.replace(session.trajectory, "${trajectory}")
    servers = {tool.server for tool in session.tools.values()}
    return text if any(session.has(Role.RESET, server) for server in servers) else VOLATILE.sub("#", text)


def random_script(session: Session, item: ListedTask) -> list[Turn]:
    """Draw calls of the task's tools that their schemas allow, followed by a message to the user."""
    rng = random.Random(item.seed)
    named = item.tools
    shown = [each for each in session.tools.values() if named is None or {each.name, each.exposed_name} & {*named}]
    # Sorted, since the two processes that are compared may list their tools in different orders.
    tools = sorted(shown, key=lambda tool: tool.exposed_name)
    turns: list[Turn] = []
    for _ in range(_RANDOM_CALLS if tools else 0):
        tool = rng.choice(tools)
        call = Call(name=tool.exposed_name, arguments=random_arguments(tool.input_schema, rng))
        turns.append(Turn(calls=[call]))
    return [*turns, Turn(content="Hello.")]


async def view(environment: Environment, session: Session, item: ListedTask) -> dict[str, Any]:
    """Observe a world without changing it: opening, score of an empty trajectory, snapshot, read-only tools.

    Raises:
        GatewayError: the world broke, or a harness tool broke its contract.
    """
    seen: dict[str, Any] = {}
    messages: list[Message] = [{"role": "user", "content": item.prompt or ""}]
    for server in environment.servers:
        if session.has(Role.START, server):
            seen[f"{server}: start"] = await calls.start(session, server)
        if server == environment.reward.server:
            seen[f"{server}: score"] = (await calls.score(session, server, messages)).model_dump()
        if session.has(Role.SNAPSHOT, server):
            seen[f"{server}: snapshot"] = await calls.snapshot(session, server)
    for tool in [tool for tool in session.tools.values() if tool.read_only][:_READS]:
        result = await session.call(tool.exposed_name, plain_arguments(tool.input_schema, "a"))
        seen[f"{tool.server}: {tool.name}"] = neutral(session, _text(result))
    return seen


def _text(result: ToolResult) -> str:
    return ("error: " if result.is_error else "") + result.text


def difference(one: object, other: object) -> str | None:
    """Describe where two observations first differ; None if they are equal."""
    first = next(differences(to_jsonable_python(one), to_jsonable_python(other)), None)
    if first is None:
        return None
    where, before, now = first.shown
    return f"{where or 'the answer'}: {before} and {now}"
