"""A script played over a session, turn by turn, so that two can take turns; and what can be seen of a world."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile, zip_longest
from typing import Any, cast

from pydantic import BaseModel

from gateway.leases.session import Session
from gateway.types import Role, ToolResult
from rollout.contract.answers import Call, Opening, Reply, Score, Snapshot, TaskItem, Turn
from rollout.engines.random_arguments import plain_arguments, random_arguments
from rollout.environment.config import Environment
from rollout.environment.harness import ask
from rollout.types import Message

_READS = 12
"""Tools that `view` calls at most."""
_RANDOM_CALLS = 6
_SHOWN = 120
"""Characters of each of two texts that differ."""


class Play:
    """One trajectory: `begin`, then `step` until it is over, then `score`.

    Raises, from each: GatewayError where the world broke or answered off contract.
    """

    def __init__(self, environment: Environment, session: Session, item: TaskItem, script: Sequence[Turn]) -> None:
        self._environment, self._session, self._item, self._script = environment, session, item, script
        self._turn, self._over = 0, False
        self.replies = 0
        """How many the user gave."""
        self.messages: list[Message] = []
        self.misfits: list[str] = []
        """Calls of the script that no server was sent: there is no such tool, or the arguments do not fit it."""

    async def begin(self) -> None:
        opening = self._item.prompt
        if self._environment.user is not None:
            started, _ = await ask(self._session, Role.START, {}, Opening, server=self._environment.user.server)
            opening = started.message
        self.messages = [{"role": "user", "content": opening or ""}]

    async def step(self) -> bool:
        """Play a turn; False where the trajectory was over already."""
        if self._over or self._turn >= len(self._script):
            return False
        turn = self._script[self._turn]
        self._turn += 1
        said: Message = {"role": "assistant", "content": turn.content or ""}
        if turn.calls:
            said["tool_calls"] = [
                {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in turn.calls
            ]
        self.messages.append(said)
        for call in turn.calls or ():
            result = await self._session.call(call.name, call.arguments)
            if result.fault is not None:
                self.misfits.append(f"{call.name}: {result.text[:200]}")
            self.messages.append({"role": "tool", "name": call.name, "content": neutral(self._session, _text(result))})
        if not turn.calls:
            await self._say(turn.content or "")
        return True

    async def score(self) -> Score | None:
        """None where no server keeps the score."""
        server = self._environment.reward.server
        if server is None:
            return None
        found, _ = await ask(self._session, Role.SCORE, {"messages": self.messages}, Score, server=server)
        return found

    async def whole(self) -> None:
        """From the opening to the script's end."""
        await self.begin()
        while await self.step():
            pass

    def seen(self, *, user: bool) -> list[Any]:
        """The conversation, for comparison; `user` says whether the user's words count."""
        return [
            message if user or message["role"] != "user" else {"role": "user", "content": "*"}
            for message in self.messages
        ]

    async def _say(self, content: str) -> None:
        if self._environment.user is None:
            self._over = True
            return
        self.replies += 1
        arguments = {"seq": self.replies, "message": content}
        reply, _ = await ask(self._session, Role.REPLY, arguments, Reply, server=self._environment.user.server)
        self.messages.append({"role": "user", "content": neutral(self._session, reply.message)})
        self._over = reply.done


def neutral(session: Session, text: str) -> str:
    """Without what is a trajectory's own by nature: its id, and its directory where it has one."""
    if session.lease_dir is not None:
        text = text.replace(str(session.lease_dir), "${lease.dir}")
    return text.replace(session.trajectory, "${trajectory}")


def random_script(session: Session, *, seed: int) -> list[Turn]:
    """Where there is no expert: calls that the schemas allow, then a word to the user."""
    rng = random.Random(seed)
    tools = sorted(session.tools.values(), key=lambda tool: tool.exposed_name)
    turns: list[Turn] = []
    for _ in range(_RANDOM_CALLS if tools else 0):
        tool = rng.choice(tools)
        call = Call(name=tool.exposed_name, arguments=random_arguments(tool.input_schema, rng))
        turns.append(Turn(calls=[call]))
    return [*turns, Turn(content="Hello.")]


async def view(environment: Environment, session: Session, item: TaskItem) -> dict[str, Any]:
    """What of a world can be seen without changing it: opening, score of having done nothing, snapshot, reading tools.

    Raises:
        GatewayError: the world broke, or a harness tool answered off contract.
    """
    seen: dict[str, Any] = {}
    messages = [{"role": "user", "content": item.prompt or ""}]
    for server in environment.servers:
        if session.has(Role.START, server):
            opening, _ = await ask(session, Role.START, {}, Opening, server=server)
            seen[f"{server}: start"] = opening.message
        if server == environment.reward.server:
            score, _ = await ask(session, Role.SCORE, {"messages": messages}, Score, server=server)
            seen[f"{server}: score"] = score.model_dump()
        if session.has(Role.SNAPSHOT, server):
            snapshot, _ = await ask(session, Role.SNAPSHOT, {}, Snapshot, server=server)
            seen[f"{server}: snapshot"] = snapshot.state
    for tool in [tool for tool in session.tools.values() if tool.read_only][:_READS]:
        result = await session.call(tool.exposed_name, plain_arguments(tool.input_schema, "a"))
        seen[f"{tool.server}: {tool.name}"] = neutral(session, _text(result))
    return seen


def _text(result: ToolResult) -> str:
    return ("error: " if result.is_error else "") + result.text


def difference(one: object, other: object) -> str | None:
    """Where two records of what was seen differ first; None where they do not."""
    for left, right in zip_longest(_leaves(one, ""), _leaves(other, "")):
        if left != right:
            where, _ = left or right or ("", None)
            texts = ["nothing" if leaf is None else repr(leaf[1]) for leaf in (left, right)]
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False)))
            return f"{where or 'the answer'}: {' and '.join(_around(text, same) for text in texts)}"
    return None


def _leaves(value: object, at: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
    elif isinstance(value, list | tuple):
        items = enumerate(cast("Sequence[object]", value))
    else:
        yield at, value
        return
    for key, inner in items:
        yield from _leaves(inner, f"{at}.{key}" if at else str(key))


def _around(text: str, place: int) -> str:
    """What fits on a line of a text, so that `place` is seen."""
    begin = 0 if len(text) <= _SHOWN else max(0, place - _SHOWN // 2)
    shown = text[begin : begin + _SHOWN]
    return ("..." if begin else "") + shown + ("..." if begin + _SHOWN < len(text) else "")
