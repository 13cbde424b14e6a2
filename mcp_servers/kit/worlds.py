"""The worlds of a server's trajectories: created, replaced, and closed."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

import anyio
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError

from mcp_rollout.mcp_servers.kit.numbered import Numbered
from mcp_rollout.mcp_servers.kit.records import Elicited, Reply
from mcp_rollout.mcp_servers.kit.state import TrajectoryState

CLOSE_S = 30.0
"""Bound on closing a world."""

log = logging.getLogger(__name__)

W = TypeVar("W")
T = TypeVar("T")

Begin = Callable[[str, int], W | Awaitable[W]]
"""(task, seed) -> a world, the same in every process. Raises LookupError for an unknown task."""
Notice = Callable[[W], Awaitable[None] | None]


async def awaited(value: T | Awaitable[T]) -> T:
    """The result of a function that may be plain or `async`."""
    return await value if inspect.isawaitable(value) else cast(T, value)


@dataclass(eq=False, slots=True)
class Trajectory(Generic[W]):
    """A trajectory's world and its numbered answers; the numbering is not part of the world."""

    world: W
    replies: Numbered[Reply] = field(default_factory=lambda: Numbered("reply", is_last=lambda reply: reply.done))
    elicited: Numbered[Elicited] = field(default_factory=lambda: Numbered("question"))

    def end(self) -> None:
        self.replies.close()
        self.elicited.close()

    def continue_in(self, world: W) -> None:
        self.world = world
        self.replies.reopen()
        self.elicited.reopen()


class Worlds(Generic[W]):
    """One world per trajectory. Each world is closed exactly once.

    Args:
        begin: Makes the world of a task and a seed.
        without_reset: Makes the world of a trajectory that was never reset, from the seed in its requests. If None,
            such a request is refused.
        max_trajectories: Maximum number of worlds alive.
    """

    def __init__(self, begin: Begin[W], without_reset: Callable[[int], W] | None, *, max_trajectories: int) -> None:
        def from_seed(seed: int) -> Trajectory[W]:
            assert without_reset is not None
            return Trajectory(without_reset(seed))

        self._begin = begin
        self._state: TrajectoryState[Trajectory[W]] = TrajectoryState(
            None if without_reset is None else from_seed, max_trajectories=max_trajectories
        )
        self.placers, self.closers = list[Notice[W]](), list[Notice[W]]()

    def __len__(self) -> int:
        return len(self._state)

    def of(self, ctx: Context) -> Trajectory[W]:
        """The request's trajectory. Raises `ToolError` if it has no world."""
        return self._state.of(ctx)

    async def begin(self, ctx: Context, task: str, seed: int) -> None:
        """Gives the trajectory a new world and closes the previous one."""
        self._state.check_room(ctx)
        await self._put(ctx, await self._begun(task, seed))

    async def swap(self, ctx: Context, world: W) -> None:
        """Replaces the trajectory's world; its replies keep their numbers."""
        trajectory = self._state.find(ctx)
        if trajectory is None:
            await self._put(ctx, world)
            return
        # Replaced before anything is awaited: a request that comes meanwhile sees one world or the other.
        before = trajectory.world
        trajectory.continue_in(world)
        await self._close(before)
        await self._place(ctx, world)

    async def end(self, ctx: Context) -> None:
        """Drops the trajectory and closes its world; does nothing if there is none."""
        # Before it is closed: a request that comes meanwhile is refused, and uses no world that is closing.
        trajectory = self._state.drop(ctx)
        if trajectory is not None:
            trajectory.end()
            await self._close(trajectory.world)

    @asynccontextmanager
    async def fresh(self, task: str, seed: int) -> AsyncGenerator[W]:
        """A world that belongs to no trajectory. Raises `ToolError` if there is no such task."""
        world = await self._begun(task, seed)
        try:
            yield world
        finally:
            await self._close(world)

    async def _begun(self, task: str, seed: int) -> W:
        try:
            return await awaited(self._begin(task, seed))
        except LookupError as error:
            raise ToolError(str(error.args[0]) if error.args else f"there is no task {task!r} here") from error

    async def _put(self, ctx: Context, world: W) -> None:
        before = self._state.find(ctx)
        try:
            # Refused where another trajectory has taken the last place while this world was made.
            self._state.reset(ctx, Trajectory(world))
        except ToolError:
            await self._close(world)
            raise
        if before is not None:
            before.end()
            await self._close(before.world)
        await self._place(ctx, world)

    async def _place(self, ctx: Context, world: W) -> None:
        try:
            for placer in self.placers:
                await awaited(placer(world))
        except BaseException:  # a cancellation too: a world that was not placed must not stay
            self._state.drop(ctx)
            await self._close(world)
            raise

    async def _close(self, world: W) -> None:
        # Shielded: no later request closes a world that this one has dropped, so a cancelled one closes it to the end.
        with anyio.move_on_after(CLOSE_S, shield=True) as bound:
            for closer in self.closers:
                await awaited(closer(world))
        if bound.cancelled_caught:
            log.warning("a world was not closed within %g s", CLOSE_S)
