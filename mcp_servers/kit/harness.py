"""`Harness`: an environment's harness tools from plain functions over its world."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import Annotated, Any, Generic, TypeVar

from mcp.server.mcpserver import Context, MCPServer
from pydantic import Field

from mcp_rollout.mcp_servers.kit import records
from mcp_rollout.mcp_servers.kit.records import Elicited, Expert, ExpertTurn, Message, Reply, Score, Split, TaskItem
from mcp_rollout.mcp_servers.kit.roles import REHEARSAL_META, TRAJECTORIES_META, HarnessRole, harness_tool
from mcp_rollout.mcp_servers.kit.worlds import Begin, Notice, Worlds, awaited

W = TypeVar("W")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

Items = Iterable[T] | AsyncIterable[T]
Start = Callable[[W], str | Awaitable[str]]
Answerer = Callable[[W, str], Reply | Awaitable[Reply]]
Elicitor = Callable[[W, str], Elicited | Awaitable[Elicited]]
Scorer = Callable[[W, list[Message]], Score | Awaitable[Score]]
Lister = Callable[[Split], Items[TaskItem] | Awaitable[Items[TaskItem]]]
Turns = Expert | Items[ExpertTurn]
Script = Callable[[W], Turns | Awaitable[Turns]]
Save = Callable[[W], dict[str, Any] | Awaitable[dict[str, Any]]]
Load = Callable[[dict[str, Any]], W | Awaitable[W]]

Seq = Annotated[int, Field(description="1, 2, 3, ...")]


class Harness(Generic[W]):
    """One world per trajectory, and the harness tools of `server`.

    `harness.world(ctx)` in a tool returns the world of the request's trajectory. `reset` and `release` are registered
    at once; each decorator below registers one more tool, described by the function's docstring if it has one. The
    decorated functions receive the world and may be `async`. A `ToolError` that they raise (or, for an unknown task, a
    `LookupError`) becomes the tool's error result.

    Tools that use a world must be `async` functions and must not await between reading and writing it, so that the
    event loop runs each of them without interruption.

    Args:
        server: Any `MCPServer`; its other tools are the policy's.
        begin: Makes the world of a task and a seed.
        without_reset: Makes the world of a trajectory that was never reset, from the seed in its requests. If None,
            such a request is refused.
        max_trajectories: Maximum number of worlds alive. A further one is refused; none is ever evicted. The reset
            declares it, and with more than one that trajectories may share the process.
        rehearsal: A task and its seed with which a process that waits for its first lease may be reset and released:
            its code has then run, and its memory is its own. Only where a world that is made and given up leaves
            nothing outside of the process.
    """

    def __init__(
        self,
        server: MCPServer,
        begin: Begin[W],
        *,
        without_reset: Callable[[int], W] | None = None,
        max_trajectories: int = 4096,
        rehearsal: tuple[str, int] | None = None,
    ) -> None:
        self.server = server
        self._start: Start[W] | None = None
        self._worlds = Worlds(begin, without_reset, max_trajectories=max_trajectories)
        meta: dict[str, Any] = {TRAJECTORIES_META: max_trajectories}
        if rehearsal is not None:
            meta[REHEARSAL_META] = {"task": rehearsal[0], "seed": rehearsal[1]}
        self._add_reset_and_release(meta)

    def __len__(self) -> int:
        """Number of worlds alive."""
        return len(self._worlds)

    def world(self, ctx: Context) -> W:
        """The world of the request's trajectory. Raises `ToolError` if it has none."""
        return self._worlds.of(ctx).world

    def start(self, function: Start[W]) -> Start[W]:
        """`(world) -> str`: the user's opening message, the same at every call."""
        self._start = function

        @self._tool("start", function, "The user's opening message; asking again gives the same.")
        async def start(ctx: Context) -> records.Opening:
            return records.Opening(message=await awaited(function(self.world(ctx))))

        return function

    def reply(self, function: Answerer[W]) -> Answerer[W]:
        """`(world, message) -> Reply`: the user's next message. Called once per turn, also if requests repeat."""

        @self._tool("reply", function, "The user's reply to the agent's message; a repeated number gives the same one.")
        async def reply(seq: Seq, message: str, ctx: Context) -> Reply:
            trajectory = self._worlds.of(ctx)
            return await trajectory.replies.answer(seq, lambda: function(trajectory.world, message))

        return function

    def elicit(self, function: Elicitor[W]) -> Elicitor[W]:
        """`(world, question) -> Elicited`: the user's answer to a question that a server asks during a tool call."""

        @self._tool("elicit", function, "The user's answer to a server's question; a repeated number gives the same.")
        async def elicit(seq: Seq, message: str, ctx: Context) -> Elicited:
            trajectory = self._worlds.of(ctx)
            return await trajectory.elicited.answer(seq, lambda: function(trajectory.world, message))

        return function

    def score(self, function: Scorer[W]) -> Scorer[W]:
        """`(world, messages) -> Score`: 0 to 1, from the world's present state and the conversation."""

        @self._tool("score", function, "The trajectory's score.")
        async def score(messages: list[Message], ctx: Context) -> Score:
            return await awaited(function(self.world(ctx), messages))

        return function

    def tasks(self, function: Lister) -> Lister:
        """`(split) -> items`, in order; a generator is read lazily. `start` gives the prompt of an item without one."""

        @self._tool("tasks", function, "The first `limit` tasks of a split.")
        async def tasks(split: Split, limit: Annotated[int, Field(ge=0)]) -> records.TaskList:
            # Closed in this task: the collector would close an abandoned generator in another one, and later.
            async with aclosing(_first(await awaited(function(split)), limit)) as items:
                return records.TaskList(tasks=[await self._with_prompt(item) async for item in items])

        return function

    def expert(self, function: Script[W]) -> Script[W]:
        """`(world) -> turns` of a perfect agent, from a fresh world of the task."""

        @self._tool("expert", function, "The scripted expert's turns for a task.")
        async def expert(task: str, seed: int) -> Expert:
            async with self._worlds.fresh(task, seed) as world:
                turns = await awaited(function(world))
                # Within the block: a lazy script reads the world while it is listed.
                return turns if isinstance(turns, Expert) else Expert(turns=[turn async for turn in _each(turns)])

        return function

    def snapshot(self, function: Save[W]) -> Save[W]:
        """`(world) -> state`, JSON. The numbers of replies are not part of it: a restored world continues them."""

        @self._tool("snapshot", function, "The trajectory's world as data.")
        async def snapshot(ctx: Context) -> records.Snapshot:
            return records.Snapshot(state=await awaited(function(self.world(ctx))))

        return function

    def restore(self, function: Load[W]) -> Load[W]:
        """`(state) -> world`, the inverse of `snapshot`, in any trajectory of the same task.

        Replaces the world alone: the next reply has the number that it would have had, even if the conversation had
        ended.
        """

        @self._tool("restore", function, "Puts a snapshot's world in place of the trajectory's.")
        async def restore(state: dict[str, Any], ctx: Context) -> records.Done:
            await self._worlds.swap(ctx, await awaited(function(state)))
            return records.Done()

        return function

    def placing(self, function: Notice[W]) -> Notice[W]:
        """`(world) -> None`, called once for each world that a reset or a restore gives to a trajectory, after the
        previous world was closed; not for the worlds of `expert` and of prompts. An exception undoes the reset.
        """
        self._worlds.placers.append(function)
        return function

    def closing(self, function: Notice[W]) -> Notice[W]:
        """`(world) -> None`, called once for each world that a release, a reset or a restore discards."""
        self._worlds.closers.append(function)
        return function

    def _add_reset_and_release(self, meta: dict[str, Any]) -> None:
        @harness_tool(self.server, "reset", "A new world for the trajectory: that of this task and seed.", meta=meta)
        async def reset(task: str, seed: int, ctx: Context) -> records.Done:
            await self._worlds.begin(ctx, task, seed)
            return records.Done()

        @harness_tool(self.server, "release", "The end of the trajectory: its world is given up.")
        async def release(ctx: Context) -> records.Done:
            await self._worlds.end(ctx)
            return records.Done()

        del reset, release  # registered

    async def _with_prompt(self, item: TaskItem) -> TaskItem:
        if item.prompt is not None or self._start is None:
            return item
        async with self._worlds.fresh(item.task, item.seed) as world:
            return item.model_copy(update={"prompt": await awaited(self._start(world))})

    def _tool(self, role: HarnessRole, function: Callable[..., Any], default: str) -> Callable[[F], F]:
        return harness_tool(self.server, role, inspect.getdoc(function) or default)


async def _first(items: Items[T], limit: int) -> AsyncGenerator[T]:
    """Yields the first `limit` items and makes no further one."""
    if limit <= 0:
        return
    left = limit
    async with aclosing(_each(items)) as made:
        async for item in made:
            yield item
            left -= 1
            if not left:
                return


async def _each(items: Items[T]) -> AsyncGenerator[T]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
