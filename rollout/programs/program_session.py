"""A trajectory's session at the endpoint: its requests one at a time, each answer sampled once, and its world's calls.

Requests and calls arrive in tasks of the HTTP server. Everything that changes the trajectory happens in the agent's own
task, `serve`, and for calls in its task group: both end before the trajectory is scored.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import anyio
from anyio.abc import TaskGroup

from mcp_rollout.rollout.errors import AgentError
from mcp_rollout.rollout.loop.turns import TrajectoryOver
from mcp_rollout.rollout.programs.conversation import SMALL, TRAIN, Answer, AnsweredCall, Asked, Refusal, Waiting
from mcp_rollout.rollout.programs.dialects.dialect import call
from mcp_rollout.rollout.programs.history import CallIds, History, Kind, Place, arguments_of
from mcp_rollout.rollout.programs.turns import Conversation, ProgramTurns
from mcp_rollout.rollout.trace.record import StopReason
from mcp_rollout.rollout.types import Message, Parsed, Shown

MOST_WAITING = 16
"""Requests of one trajectory that wait for their turn; a further one is refused."""
MOST_BESIDE = 64
"""Requests beside the conversation, each of which is sampled; a further one is refused."""
_UNNAMED = "unreadable_call"
"""What a call is called of which not even the name could be read."""

_NO_RESULT = "The program gives no result of this call."


class ProgramSession:
    """The session of one trajectory."""

    def __init__(self, turns: ProgramTurns) -> None:
        self._turns = turns
        self._tasks: TaskGroup | None = None
        self._ids, self._history = CallIds(turns.trajectory), History()
        self._send, self._receive = anyio.create_memory_object_stream[Waiting](math.inf)
        self._open: deque[Waiting] = deque()
        """Those that wait, and the one that is being answered."""
        self._answers: list[Answer] = []
        """By turn."""
        self._answered: deque[Waiting] = deque(maxlen=1)
        self._besides: deque[Waiting] = deque(maxlen=4)
        """The last ones, which a program may repeat."""
        self._sampled_beside = 0
        """Answers beside the conversation that are in no segment."""
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
                if self._turns.is_over:  # a limit has cut the answer
                    raise TrajectoryOver
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
        fingerprint = self._ids.fingerprint(asked.messages, asked.tools, asked.offered)
        for earlier in (*self._open, *self._answered, *self._besides):
            if earlier.is_repeated_by(fingerprint, asked.messages):
                self._turns.asked_again(earlier.turn)
                return earlier, next(iter(asked.messages[len(earlier.fingerprint.messages) :]), None)
        waiting = Waiting(asked=asked, fingerprint=fingerprint)
        problem = self._problem(asked)
        if self.over or problem:
            waiting.outcome = self.refusal if self.over else Refusal(problem)
            waiting.done.set()
        else:
            self._open.append(waiting)
            self._send.send_nowait(waiting)
        return waiting, None

    def _problem(self, asked: Asked) -> str:
        """Why a request that repeats none is not taken; empty if it is."""
        ids = [each["id"] for message in asked.messages for each in message.get("tool_calls") or ()]
        forged = next(filter(self._ids.is_forged, ids), None)
        train = asked.labels.get(TRAIN, "true")
        if len(self._open) > MOST_WAITING:
            return f"{MOST_WAITING} requests of this trajectory wait already"
        if forged is not None:
            return f"no answer here has a call of the id {forged!r:.80}"
        if train.lower() != "true" and self._ids.place(train) is None:
            return f"{TRAIN} is {train!r:.80}, which is neither true nor the id of a call of this trajectory"
        if asked.messages[-1]["role"] == "assistant":
            return "the last message is an assistant's: an answer that is begun is not continued here"
        return ""

    async def _answer(self, waiting: Waiting) -> Answer | Refusal:
        asked, fingerprint = waiting.asked, waiting.fingerprint
        place = self._history.place(fingerprint, asked.messages)
        names = TRAIN in asked.labels or any(map(self._ids.place, asked.labels.values()))
        is_toolless = place.kind is Kind.OPENING and self.tools and not asked.offered
        is_separate = asked.model == SMALL or is_toolless or (place.kind is Kind.BESIDE and not names)
        is_beside = place.is_beside or place.kind is Kind.BESIDE
        if (is_separate or is_beside) and self._sampled_beside + len(self._history.beside) >= MOST_BESIDE:
            return Refusal(f"{MOST_BESIDE} requests beside the conversation were answered already")
        continues = not is_separate and place.kind in (Kind.EXTENSION, Kind.BRANCH)
        new, known = asked.messages[place.known :], asked.messages[place.known - 1]
        if continues and not (known.get("tool_calls") or any(message["content"] for message in new)):
            return Refusal("the new messages are empty: there is nothing to answer")
        if not continues and (problem := self._turns.unshowable(_rendered(asked.messages), asked.tools)):
            return Refusal(problem)
        if is_separate:
            return await self._beside(waiting)
        await self._take(place, asked)
        parsed = await self._turns.generate(max_tokens=asked.max_tokens)
        answer = self._answer_of(parsed, asked, self._turns.taken - 1, *self._turns.usage)
        calls = [call(each.id, each.name, each.arguments) for each in answer.calls]
        key = self._ids.key({"role": "assistant", "content": answer.text, "tool_calls": calls})
        self._history.answered(fingerprint, key, begins=place.kind is Kind.OPENING, is_beside=is_beside)
        self._answers.append(answer)
        waiting.turn = self._turns.taken - 1
        (self._besides if is_beside else self._answered).append(waiting)
        return answer

    async def _take(self, place: Place, asked: Asked) -> None:
        """Bring the trajectory's conversation to where the request is."""
        messages = asked.messages
        results: dict[int, dict[int, str]] = {}
        said: list[str] = []
        for message in messages[place.known :]:
            made = self._ids.place(message.get("tool_call_id"))
            if made is not None and place.turn in (made[0], -1):
                results.setdefault(made[0], {})[made[1]] = str(message["content"])
            else:
                said.append(str(message["content"]))
        text = "\n\n".join(filter(None, said))
        if place.kind is Kind.EXTENSION:
            changed = self._answers[place.turn].changed_to(messages[place.known - 1])
            await self._turns.observe(results.get(place.turn, {}), text, changed=changed)
        elif place.kind is Kind.BRANCH:
            await self._turns.go_back(place.turn, results.get(place.turn, {}), text)
        else:
            if place.kind is Kind.OPENING:
                self._check_tools(asked)
            conversation = Conversation(
                messages=_rendered(messages),
                tools=asked.tools,
                worlds=_worlds(asked.tools, self.tools),
                is_beside=place.is_beside or place.kind is Kind.BESIDE,
            )
            why = f"{len(messages)} messages, {len(asked.tools)} tools"
            await self._turns.converse(conversation, why=why, results=results)

    def _check_tools(self, asked: Asked) -> None:
        missing = self.tools.keys() - _worlds(asked.offered, self.tools).values()
        if missing:
            problem = f"the program began without the world's tools: it lacks {', '.join(sorted(missing))}"
            raise AgentError(f"{problem}; it has {', '.join(_names(asked.offered)) or 'none'}")

    async def _beside(self, waiting: Waiting) -> Answer:
        asked = waiting.asked
        messages = _rendered(asked.messages)
        parsed, usage = await self._turns.sample_beside(messages, asked.tools, max_tokens=asked.max_tokens)
        self._sampled_beside += 1
        self._besides.append(waiting)
        return self._answer_of(parsed, asked, -self._sampled_beside, *usage)

    def _answer_of(self, parsed: Parsed, asked: Asked, turn: int, read: int, sampled: int, is_cut: bool) -> Answer:
        shown, is_free = _names(asked.tools), len(asked.tools) == len(asked.offered)
        written = [(at, call) for at, call in enumerate(parsed.calls) if is_free or call.name in shown]
        calls = [
            AnsweredCall(
                id=self._ids.of(turn, at),
                name=call.name or _UNNAMED,
                # A problem is no JSON either, and programs tell the policy what they were given.
                arguments=call.problem or call.as_text or json.dumps(call.arguments, ensure_ascii=False),
            )
            for at, call in written[: asked.most_calls]
        ]
        return Answer(
            text=parsed.content,
            thinking=parsed.thinking,
            calls=tuple(calls),
            is_cut=is_cut,
            prompt_tokens=read,
            sampled_tokens=sampled,
        )

    # The world's side.

    async def call(self, name: str, arguments: dict[str, Any], id: str | None) -> tuple[Shown, bool] | None:
        """A call of the program's: what it is given, and whether it is an error; None if the trajectory is over.

        It goes on where the program gives its request up: it may have taken effect.
        """
        if id is not None and self._ids.is_forged(id):
            return Shown(text=f"Not called: no answer here has a call of the id {id!r:.80}."), True
        done, made = anyio.Event(), list[tuple[Shown, bool]]()

        async def make() -> None:
            try:
                made.append(await self._turns.call(name, arguments, of=self._ids.place(id)))
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
