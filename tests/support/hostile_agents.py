"""Agents that do what an agent must not, each in one way; they reach for private attributes where that is the way."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.lowlevel

from gateway.errors import GatewayError
from rollout.errors import EngineError
from rollout.loop.turns import TrajectoryOver, Turns

KEPT: list[Turns] = []
"""What `Keeper` keeps beyond its trajectory."""
WAITING: list[object] = []
"""The agents that wait for ever."""
KEPT_TASKS: list[asyncio.Task[Any]] = []
"""What `Leaves` leaves running."""


class Plain:
    """What the built-in agent does."""

    async def play(self, turns: Turns) -> None:
        while (await turns.generate()).calls:
            await turns.call_tools()


class EditsCopies:
    """Edits everything that it is given."""

    async def play(self, turns: Turns) -> None:
        turns.messages.clear()
        turns.tools[0]["function"]["name"] = "fake"
        said = await turns.generate()
        said.calls[0].arguments["by"] = 9
        (event,) = await turns.call_tools()
        event.text, event.reward = "fake", 1.0
        await turns.generate()


def _trace(turns: Any) -> Any:
    return turns._trace


def _fake_ids(trace: Any) -> None:
    trace.response_ids += [1]
    trace.loss_mask += [1]
    trace.logprobs += [0.0]


def _edit_mask(trace: Any) -> None:
    trace.loss_mask[0] = 0


def _edit_earlier(trace: Any) -> None:
    trace.response_ids[0] += 1


def _edit_prompt(trace: Any) -> None:
    trace.prompt_ids[0] += 1


def _edit_context(trace: Any) -> None:
    trace.context[-1] += 1


def _edit_logprobs(trace: Any) -> None:
    trace.logprobs[0] = -3.0


def _pay(trace: Any) -> None:
    trace.turns[0].tools[0].reward = 1.0


def _rewrite(trace: Any) -> None:
    trace.messages[-1]["content"] = "The right answer."


def _finish(trace: Any) -> None:
    trace.stop_reason = "answered"


EDITS: dict[str, Callable[[Any], None]] = {
    "fake_ids": _fake_ids,
    "edit_mask": _edit_mask,
    "edit_earlier": _edit_earlier,
    "edit_prompt": _edit_prompt,
    "edit_context": _edit_context,
    "edit_logprobs": _edit_logprobs,
    "pay": _pay,
    "rewrite": _rewrite,
    "finish": _finish,
}


@dataclass
class Tampers:
    """Edits the library's trace after its first calls, and goes on or ends."""

    edit: str
    goes_on: bool = False

    async def play(self, turns: Turns) -> None:
        await turns.generate()
        await turns.call_tools()
        EDITS[self.edit](_trace(turns))
        if self.goes_on:
            try:
                await turns.generate()
            except Exception:
                await turns.generate()


class Keeper(Plain):
    async def play(self, turns: Turns) -> None:
        KEPT.append(turns)
        await super().play(turns)


class NeverEnough:
    """Generates for ever, and catches what tells it to stop."""

    async def play(self, turns: Turns) -> None:
        while True:
            try:
                await turns.generate()
                await turns.call_tools()
            except BaseException:
                continue


class Insists(Plain):
    """Makes the same mistake for ever."""

    async def play(self, turns: Turns) -> None:
        await turns.generate()
        while True:
            try:
                await turns.generate()
            except Exception:
                continue


class OnceMore:
    """Catches the end, tries again, and gives up."""

    async def play(self, turns: Turns) -> None:
        try:
            await Plain().play(turns)
        except TrajectoryOver:
            pass
        try:
            await turns.generate()
        except TrajectoryOver:
            return


class Stubborn:
    """Waits for ever, and catches every cancellation."""

    async def play(self, turns: Turns) -> None:
        await turns.generate()
        await turns.call_tools()
        WAITING.append(self)
        while True:
            try:
                await anyio.sleep_forever()
            except asyncio.CancelledError:
                pass


class Immortal:
    """Catches every exception there is."""

    async def play(self, turns: Turns) -> None:
        await turns.generate()
        WAITING.append(self)
        while True:
            try:
                await anyio.sleep_forever()
            except BaseException:
                pass


class Shielded:
    """Waits for ever where no cancel scope reaches it."""

    async def play(self, turns: Turns) -> None:
        await turns.generate()
        WAITING.append(self)
        with anyio.CancelScope(shield=True):
            await anyio.sleep_forever()


class Swallows:
    """Catches the cancellation once, and returns."""

    async def play(self, turns: Turns) -> None:
        await turns.generate()
        await turns.call_tools()
        WAITING.append(self)
        try:
            await anyio.sleep_forever()
        except asyncio.CancelledError:
            return


@dataclass(frozen=True)
class Unchangeable(Exception):
    """An error of which not even the traceback can be set."""

    problem: str

    def __str__(self) -> str:
        return self.problem


@dataclass
class Raises:
    what: str
    at: int = 1

    async def play(self, turns: Turns) -> None:
        for _ in range(self.at):
            await turns.generate()
            await turns.call_tools()
        match self.what:
            case "value":
                raise ValueError("the answer has no number")
            case "group":
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(Raises("value", at=0).play, turns)
            case "world":
                raise GatewayError("the world broke, says the agent")
            case "engine":
                raise EngineError("the engine broke, says the agent")
            case "cancelled":
                raise asyncio.CancelledError
            case "frozen":
                raise Unchangeable("the answer has no number")
            case _:
                sys.exit(3)


class Blames:
    """Catches what broke, and answers nevertheless."""

    async def play(self, turns: Turns) -> None:
        try:
            await Plain().play(turns)
        except Exception:
            return


class Twice:
    """Two methods at a time."""

    async def play(self, turns: Turns) -> None:
        await turns.generate()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(turns.call_tools)
            tasks.start_soon(turns.call_tools)


class Leaves:
    """Returns while its calls are under way."""

    async def play(self, turns: Turns) -> None:
        await turns.generate()
        KEPT_TASKS.append(asyncio.create_task(turns.call_tools()))
        await anyio.lowlevel.checkpoint()


class Idle:
    async def play(self, turns: Turns) -> None:
        pass


@dataclass
class Misuses:
    """Calls a method where it has no meaning."""

    how: str

    async def play(self, turns: Turns) -> None:
        if self.how == "ask nothing":
            await turns.ask_user()
        if self.how == "call nothing":
            await turns.call_tools()
        await turns.generate()
        if self.how == "generate twice":
            await turns.generate()
        if self.how == "leave calls":
            await turns.say("Never mind.")
        if self.how == "ask with calls":
            await turns.ask_user()
        await turns.call_tools()
        if self.how == "call twice":
            await turns.call_tools()
        if self.how == "say nothing":
            await turns.say("")
        if self.how == "say half":
            await turns.say("\ud83d")


class ImpatientAsker:
    """Gives the user no time, and goes on as if it had answered."""

    async def play(self, turns: Turns) -> None:
        await turns.generate()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await turns.ask_user()
        await turns.say("Never mind the user.")
        await turns.generate()


class Impatient:
    """Gives the first calls no time, and goes on with what the policy reads then."""

    async def play(self, turns: Turns) -> None:
        await turns.generate()
        with anyio.move_on_after(0.2):
            await turns.call_tools()
        await Plain().play(turns)
