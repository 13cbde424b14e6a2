"""Agents that do what an agent must not, each in one way; they reach for private attributes where that is the way."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event
from typing import Any

import anyio
import anyio.lowlevel

from mcp_rollout.gateway.errors import GatewayError
from mcp_rollout.rollout.errors import EngineError
from mcp_rollout.rollout.loop.turns import TrajectoryOver, Turns

KEPT: list[Turns] = []
"""What `Keeper` keeps beyond its trajectory."""
WAITING: list[object] = []
"""The agents that wait for ever."""
KEPT_TASKS: list[asyncio.Task[Any]] = []
"""What `Leaves` and `Stubborn` leave running."""
LET_GO = Event()
"""Ends `Stubborn`."""


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


def _mark(trace: Any) -> None:
    trace.loss_mask[:] = [1] * len(trace.loss_mask)


EDITS: dict[str, Callable[[Any], None]] = {"fake_ids": _fake_ids, "mark": _mark}


@dataclass
class Tampers:
    """Writes into the library's trace after its first calls."""

    edit: str

    async def play(self, turns: Turns) -> None:
        await turns.generate()
        await turns.call_tools()
        await turns.say("Go on.")
        await turns.generate()
        EDITS[self.edit](_trace(turns))


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
            except (Exception, TrajectoryOver):
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
    """Waits until it is let go, and catches every cancellation."""

    async def play(self, turns: Turns) -> None:
        await turns.generate()
        await turns.call_tools()
        WAITING.append(self)
        LET_GO.clear()
        task = asyncio.current_task()
        assert task is not None
        KEPT_TASKS.append(task)
        while not LET_GO.is_set():
            try:
                await anyio.sleep_forever()
            except asyncio.CancelledError:
                pass


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
