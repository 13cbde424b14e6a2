"""A trajectory's place at the endpoint: its requests one at a time, each answer sampled once, and its world's calls.

Requests and calls arrive in tasks of the HTTP server. Everything that changes the trajectory happens in the agent's own
task, `serve`, and for calls in its task group: both end before the trajectory is scored.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import anyio
from anyio.abc import TaskGroup

from rollout.errors import AgentError
from rollout.loop.turns import Aside, TrajectoryOver, Turns
from rollout.programs.conversation import SMALL, Answer, AnsweredCall, Asked, Refusal, Waiting
from rollout.programs.dialects.dialect import call
from rollout.programs.history import CallIds, History, Kind, Place, arguments_of
from rollout.trace.record import StopReason
from rollout.types import Message, Parsed, Shown

MOST_WAITING = 16
"""Requests of one trajectory that wait for their turn; a further one is refused."""
MOST_ASIDES = 64
"""Requests beside the conversation, each of which is sampled; a further one is refused."""
_QUOTED = 32
"""Characters of a text from which on its return is no coincidence."""
_UNNAMED = "unreadable_call"
"""What a call is called of which not even the name could be read."""

_NO_RESULT = "The program gives no result of this call."


class Seat:
    """The place of one trajectory."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._tasks: TaskGroup | None = None
        self._ids, self._history = CallIds(turns.trajectory), History()
        self._send, self._receive = anyio.create_memory_object_stream[Waiting](math.inf)
        self._open: deque[Waiting] = deque()
        """Those that wait, and the one that is being answered."""
        self._answered: deque[Waiting] = deque(maxlen=1)
        self._besides: deque[Waiting] = deque(maxlen=4)
        """The last ones, which a program may repeat."""
        self._asides: list[Aside | None] = []
        """Generations beside the conversation; None for those that became turns of it."""
        self._worlds: dict[str, str] = {}
        self.over = ""
        """Why there is no further answer; empty while there is."""
        self.refused = ""
        """Why the last request was refused that could not be read."""
        self.tools = {tool["function"]["name"]: tool["function"] for tool in turns.tools}
        """The world's tools, by exposed name."""

    async def serve(self, tasks: TaskGroup) -> None:
        """Answer requests, one at a time, until `end`. Raises what `Turns` raises.

        Args:
            tasks: The agent's own group, for the world's calls.
        """
        self._tasks = tasks
        try:
            async for waiting in self._receive:
                # Where the trajectory ends with this request, it stays open: `close` says why.
                waiting.outcome = await self._answer(waiting)
                self._open.remove(waiting)
                waiting.done.set()
        finally:
            self.close()

    def end(self) -> None:
        """The program has ended: answer what waits, and no more."""
        self._send.close()
        self.over = self.over or "the program of this trajectory has ended"

    def close(self) -> None:
        """Refuse what waits, and what comes."""
        self._send.close()
        self._receive.close()
        reason = self._turns.stop_reason
        self.over = self.over or f"the trajectory is over: {reason or 'it was ended from outside'}"
        while self._open:
            waiting = self._open.popleft()
            waiting.outcome = waiting.outcome or self.refusal
            waiting.done.set()

    @property
    def refusal(self) -> Refusal:
        return Refusal(self.over, is_length=self._turns.stop_reason is StopReason.TOKEN_LIMIT)

    def ask(self, asked: Asked) -> tuple[Waiting, Message | None]:
        """Take a request.

        Returns:
            What is answered, perhaps for an earlier request that this one repeats; and the part of the answer that the
            program has already.
        """
        told = self._ids.told(asked.messages, asked.tools)
        for earlier in (*self._open, *self._answered, *self._besides):
            if earlier.is_repeated_by(told, asked.messages):
                if earlier in self._answered:
                    self._turns.asked_again()
                return earlier, next(iter(asked.messages[len(earlier.told.messages) :]), None)
        waiting = Waiting(asked=asked, told=told)
        if self.over or len(self._open) > MOST_WAITING:
            full = Refusal(f"{MOST_WAITING} requests of this trajectory wait already")
            waiting.outcome = self.refusal if self.over else full
            waiting.done.set()
        else:
            self._open.append(waiting)
            self._send.send_nowait(waiting)
        return waiting, None

    async def _answer(self, waiting: Waiting) -> Answer | Refusal:
        asked = waiting.asked
        place = self._history.place(waiting.told, asked.messages, self._ids)
        if place.kind is Kind.BESIDE and self._quoted_in(asked.messages):
            place = Place(Kind.REWRITTEN)
        is_toolless = place.kind is Kind.OPENING and self.tools and not asked.tools
        if place.kind is Kind.BESIDE or asked.model == SMALL or is_toolless:
            return await self._beside(waiting)
        await self._take(place, asked)
        parsed = await self._turns.generate(max_tokens=asked.max_tokens)
        answer = self._answer_of(parsed, self._turns.taken - 1, *self._turns.usage)
        calls = [call(each.id, each.name, each.arguments) for each in answer.calls]
        message = {"role": "assistant", "content": answer.text, "tool_calls": calls}
        told = replace(waiting.told, messages=(*waiting.told.messages, self._ids.key(message)))
        self._history.answered(told)
        self._answered.append(waiting)
        return answer

    async def _take(self, place: Place, asked: Asked) -> None:
        """Bring the trajectory's conversation to where the request is."""
        messages = asked.messages
        if place.kind in (Kind.OPENING, Kind.REWRITTEN):
            self._worlds = _worlds(asked.tools, self.tools)
            if place.kind is Kind.OPENING:
                self._check_tools(asked)
            quoted = self._quoted_in(messages) if place.kind is Kind.REWRITTEN else []
            for aside in quoted:
                self._asides[self._asides.index(aside)] = None
                self._history.answered(None)
            why = f"{len(messages)} messages, {len(asked.tools)} tools"
            await self._turns.tell(_rendered(messages), asked.tools, worlds=self._worlds, why=why, asides=quoted)
            return
        results: dict[int, str] = {}
        said: list[str] = []
        for message in messages[place.known :]:
            position = self._ids.position(str(message.get("tool_call_id")), place.turn)
            if position is None:
                said.append(str(message["content"]))
            else:
                results[position] = str(message["content"])
        text = "\n\n".join(filter(None, said))
        if place.kind is Kind.EXTENSION:
            told = self._answered[-1].outcome
            changed = told.changed_to(messages[place.known - 1]) if isinstance(told, Answer) else ""
            await self._turns.hear(results, text, changed=changed)
        else:
            await self._turns.go_back(place.turn, results, text)

    def _check_tools(self, asked: Asked) -> None:
        missing = self.tools.keys() - self._worlds.values()
        if missing:
            problem = f"the program began without the world's tools: it lacks {', '.join(sorted(missing))}"
            raise AgentError(f"{problem}; it has {', '.join(_names(asked.tools)) or 'none'}")

    async def _beside(self, waiting: Waiting) -> Answer | Refusal:
        asked = waiting.asked
        if len(self._asides) >= MOST_ASIDES:
            return Refusal(f"{MOST_ASIDES} requests beside the conversation were answered already")
        aside = await self._turns.aside(_rendered(asked.messages), asked.tools, max_tokens=asked.max_tokens)
        self._asides.append(aside)
        self._besides.append(waiting)
        sampled = len(aside.completion.ids)
        return self._answer_of(aside.parsed, -len(self._asides), len(aside.prompt_ids), sampled)

    def _quoted_in(self, messages: Sequence[Message]) -> list[Aside]:
        """The generations beside the conversation whose text the messages have, and that are no turns yet."""
        texts = [str(message["content"]) for message in messages]
        return [
            aside
            for aside in self._asides
            if aside is not None
            and len(said := aside.parsed.content.strip()) >= _QUOTED
            and any(said in text for text in texts)
        ]

    def _answer_of(self, parsed: Parsed, turn: int, read: int, sampled: int) -> Answer:
        calls = [
            AnsweredCall(
                id=self._ids.of(turn, at),
                name=call.name or _UNNAMED,
                # A problem is no JSON either, and programs tell the policy what they were given.
                arguments=call.problem or call.as_text or json.dumps(call.arguments, ensure_ascii=False),
            )
            for at, call in enumerate(parsed.calls)
        ]
        return Answer(
            text=parsed.content,
            thinking=parsed.thinking,
            calls=tuple(calls),
            prompt_tokens=read,
            sampled_tokens=sampled,
        )

    # The world's side.

    async def call(self, name: str, arguments: dict[str, Any], id: str | None) -> tuple[Shown, bool] | None:
        """A call of the program's: what it is given, and whether it is an error; None if the trajectory is over.

        It goes on where the program gives its request up: it may have taken effect.
        """
        position = None if id is None else self._ids.position(id, self._turns.taken - 1)
        done, made = anyio.Event(), list[tuple[Shown, bool]]()

        async def make() -> None:
            try:
                made.append(await self._turns.call(name, arguments, position=position))
            except TrajectoryOver:
                pass
            finally:
                done.set()

        if self.over or self._tasks is None:
            return None
        self._tasks.start_soon(make)
        await done.wait()
        return made[0] if made else None


def _rendered(messages: Sequence[Message]) -> list[Message]:
    """A copy as chat templates take it: arguments are objects, and each call has a result, in the order of the calls.

    Templates without ids go by that order.
    """
    rendered: list[Message] = []
    places: dict[str, int] = {}
    for message in deepcopy([*messages]):
        if message["role"] == "tool":
            rendered[places[message["tool_call_id"]]] = message
            continue
        rendered.append(message)
        for each in message.get("tool_calls", ()):
            each["function"]["arguments"] = arguments_of(each["function"]["arguments"])
            places[each["id"]] = len(rendered)
            rendered.append({"role": "tool", "tool_call_id": each["id"], "content": _NO_RESULT})
    return rendered


def _worlds(tools: Sequence[Mapping[str, Any]], exposed: Mapping[str, Any]) -> dict[str, str]:
    """By a program's name of a tool, the world's: programs put a server's name in front."""
    found: dict[str, str] = {}
    for name in _names(tools):
        ends = [each for each in exposed if name == each or (name.endswith(each) and name[-len(each) - 1] in "_-./:")]
        if ends:
            found[name] = max(ends, key=len)
    return found


def _names(tools: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(tool["function"]["name"]) for tool in tools]
