"""An environment's harness from plain functions over its world; `Harness` is all that a server needs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import aclosing
from typing import Annotated, Any, Generic, TypeVar

from mcp.server.mcpserver import Context, MCPServer
from pydantic import Field

from mcp_servers.kit.answers import (
    Done,
    Elicited,
    Expert,
    Opening,
    Reply,
    Score,
    Snapshot,
    Split,
    TaskItem,
    TaskList,
)
from mcp_servers.kit.functions import (
    Answerer,
    Begin,
    Elicitor,
    Lister,
    Load,
    Notice,
    Save,
    Scorer,
    Script,
    Start,
    awaited,
    each,
    first,
)
from mcp_servers.kit.messages import Message
from mcp_servers.kit.roles import harness_tool
from mcp_servers.kit.worlds import Worlds

W = TypeVar("W")
F = TypeVar("F", bound=Callable[..., Any])

Seq = Annotated[int, Field(description="1, 2, 3, ...")]


class Harness(Generic[W]):
    """One world per trajectory, and the harness tools of `server`.

    `harness.world(ctx)` in a tool is the world of the request's trajectory. `reset` and `release` are there at once;
    each decorator below adds one more. Decorated functions get the world, and any of them may be `async`; what they
    raise as `ToolError` (or, for an unknown task, `LookupError`) is told to whoever asked.

    Tools that use a world must be `async` functions and must not await between reading and writing it: then one event
    loop runs each of them in one piece.

    Args:
        server: Any `MCPServer`; its other tools are the policy's.
        begin: Makes the world of a task and seed.
        without_reset: Makes the world of a trajectory that was never reset, from the seed in its requests; without it
            such a request is refused.
        max_trajectories: How many worlds may be alive; a further one is refused and none is ever evicted.
    """

    def __init__(
        self,
        server: MCPServer,
        begin: Begin[W],
        *,
        without_reset: Callable[[int], W] | None = None,
        max_trajectories: int = 4096,
    ) -> None:
        self.server = server
        self._start: Start[W] | None = None
        self._worlds = Worlds(begin, without_reset, max_trajectories=max_trajectories)
        self._add_life()

    def __len__(self) -> int:
        """How many worlds are alive."""
        return len(self._worlds)

    def world(self, ctx: Context) -> W:
        """The world of the request's trajectory. Raises `ToolError` where there is none."""
        return self._worlds.of(ctx).world

    def start(self, function: Start[W]) -> Start[W]:
        """`(world) -> str`: how the user begins. Asked again, it must say the same."""
        self._start = function

        @self._tool("start", function, "The user's opening message; asking again gives the same.")
        async def start(ctx: Context) -> Opening:
            return Opening(message=await awaited(function(self.world(ctx))))

        return function

    def reply(self, function: Answerer[W]) -> Answerer[W]:
        """`(world, message) -> Reply`: what the user says next. Called once a turn, however often it is asked."""

        @self._tool("reply", function, "The user's reply to the agent's message; a repeated number gives the same one.")
        async def reply(seq: Seq, message: str, ctx: Context) -> Reply:
            here = self._worlds.of(ctx)
            return await here.replies.answer(seq, lambda: function(here.world, message))

        return function

    def elicit(self, function: Elicitor[W]) -> Elicitor[W]:
        """`(world, question) -> Elicited`: the user's answer to a question that a server asks within a call."""

        @self._tool("elicit", function, "The user's answer to a server's question; a repeated number gives the same.")
        async def elicit(seq: Seq, message: str, ctx: Context) -> Elicited:
            here = self._worlds.of(ctx)
            return await here.elicited.answer(seq, lambda: function(here.world, message))

        return function

    def score(self, function: Scorer[W]) -> Scorer[W]:
        """`(world, messages) -> Score`: from 0 to 1, from the world as it is and from what was said."""

        @self._tool("score", function, "The trajectory's score.")
        async def score(messages: list[Message], ctx: Context) -> Score:
            return await awaited(function(self.world(ctx), messages))

        return function

    def tasks(self, function: Lister) -> Lister:
        """`(split) -> items`, in order and lazily if it likes. An item without a prompt gets what `start` says."""

        @self._tool("tasks", function, "The first `limit` tasks of a split.")
        async def tasks(split: Split, limit: Annotated[int, Field(ge=0)]) -> TaskList:
            async with aclosing(first(await awaited(function(split)), limit)) as items:
                return TaskList(tasks=[await self._with_prompt(item) async for item in items])

        return function

    def expert(self, function: Script[W]) -> Script[W]:
        """`(world) -> turns` of a perfect agent, from a fresh world of the task."""

        @self._tool("expert", function, "The scripted expert's turns for a task.")
        async def expert(task: str, seed: int) -> Expert:
            async with self._worlds.fresh(task, seed) as world:
                turns = await awaited(function(world))
                return turns if isinstance(turns, Expert) else Expert(turns=[turn async for turn in each(turns)])

        return function

    def snapshot(self, function: Save[W]) -> Save[W]:
        """`(world) -> state`, JSON. The numbering of replies is not part of it: a restored world counts on."""

        @self._tool("snapshot", function, "The trajectory's world as data.")
        async def snapshot(ctx: Context) -> Snapshot:
            return Snapshot(state=await awaited(function(self.world(ctx))))

        return function

    def restore(self, function: Load[W]) -> Load[W]:
        """`(state) -> world`, the inverse of `snapshot`, in any trajectory of the same task.

        The world alone is put in place: the next reply has the number that it would have had, also where the
        conversation was over.
        """

        @self._tool("restore", function, "Puts a snapshot's world in place of the trajectory's.")
        async def restore(state: dict[str, Any], ctx: Context) -> Done:
            await self._worlds.swap(ctx, await awaited(function(state)))
            return Done()

        return function

    def placing(self, function: Notice[W]) -> Notice[W]:
        """`(world) -> None`, called once for each world that a reset or a restore gives to a trajectory, after the one
        before it was closed; not for those that `expert` and prompts are taken from. What it raises undoes the reset.
        """
        self._worlds.placers.append(function)
        return function

    def closing(self, function: Notice[W]) -> Notice[W]:
        """`(world) -> None`, called once for each world that is given up, by a release, a reset or a restore."""
        self._worlds.closers.append(function)
        return function

    def _add_life(self) -> None:
        @harness_tool(self.server, "reset", "A new world for the trajectory: that of this task and seed.")
        async def reset(task: str, seed: int, ctx: Context) -> Done:
            await self._worlds.begin(ctx, task, seed)
            return Done()

        @harness_tool(self.server, "release", "The end of the trajectory: its world is given up.")
        async def release(ctx: Context) -> Done:
            await self._worlds.end(ctx)
            return Done()

        del reset, release  # registered

    async def _with_prompt(self, item: TaskItem) -> TaskItem:
        if item.prompt is not None or self._start is None:
            return item
        async with self._worlds.fresh(item.task, item.seed) as world:
            return item.model_copy(update={"prompt": await awaited(self._start(world))})

    def _tool(self, role: Any, function: Callable[..., Any], otherwise: str) -> Callable[[F], F]:
        return harness_tool(self.server, role, inspect.getdoc(function) or otherwise)
