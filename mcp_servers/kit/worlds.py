"""The worlds of a server's trajectories: created, replaced, and closed."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar, cast

import anyio
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError

from mcp_servers.kit.numbered import Numbered
from mcp_servers.kit.records import Elicited, Reply
from mcp_servers.kit.state import TrajectoryState

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


Check = Callable[[str, int], object]
"""(task, seed) -> anything. Raises LookupError for an unknown task."""


@dataclass(eq=False, slots=True)
class Trajectory(Generic[W]):
    """A trajectory's world and its numbered answers; the numbering is not part of the world.

    Args:
        make: Makes the world at its first use.
    """

    _make: Callable[[], W] | None
    _world: W | None = None
    _soon: asyncio.TimerHandle | None = None
    replies: Numbered[Reply] = field(default_factory=lambda: Numbered("reply", is_last=lambda reply: reply.done))
    elicited: Numbered[Elicited] = field(default_factory=lambda: Numbered("question"))

    @property
    def world(self) -> W:
        if self._make is not None:
            self._world, self._make = self._make(), None
        return cast(W, self._world)

    def make_soon(self) -> None:
        """Makes the world once the answers that are due have been written, unless it is used before."""
        # A timer, since the event loop calls it after the callbacks that write answers.
        self._soon = asyncio.get_running_loop().call_later(0, self._make_now)

    def _make_now(self) -> None:
        try:
            _ = self.world
        except Exception:  # boundary: the environment's code; what uses the world calls it again and reports it
            log.debug("a world was not made", exc_info=True)

    def end(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
        self.replies.close()
        self.elicited.close()

    def continue_in(self, world: W) -> None:
        self._make, self._world = None, world
        self.replies.reopen()
        self.elicited.reopen()


class Worlds(Generic[W]):
    """One world per trajectory. Each world is closed exactly once.

    Args:
        begin: Makes the world of a task and a seed.
        without_reset: Makes the world of a trajectory that was never reset, from the seed in its requests. If None,
            such a request is refused.
        max_trajectories: Maximum number of worlds alive.
        check: Refuses what `begin` would. With it a reset is answered before its world is made, unless there are
            placers or closers.
    """

    def __init__(
        self,
        begin: Begin[W],
        without_reset: Callable[[int], W] | None,
        *,
        max_trajectories: int,
        check: Check | None = None,
    ) -> None:
        def from_seed(seed: int) -> Trajectory[W]:
            assert without_reset is not None
            return Trajectory(None, without_reset(seed))

        self._begin, self._check = begin, check
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
        # A placer may refuse the world, and a closer gets every one that was made.
        if self._check is None or self.placers or self.closers:
            await self._put(ctx, Trajectory(None, await self._begun(task, seed)))
            return
        with _unknown_task(task):
            self._check(task, seed)
        trajectory = Trajectory(cast("Callable[[], W]", partial(self._begin, task, seed)))
        await self._put(ctx, trajectory)
        trajectory.make_soon()

    async def swap(self, ctx: Context, world: W) -> None:
        """Replaces the trajectory's world; its replies keep their numbers."""
        trajectory = self._state.find(ctx)
        if trajectory is None:
            await self._put(ctx, Trajectory(None, world))
            return
        # Replaced before anything is awaited: a request that comes meanwhile sees one world or the other.
        before = copy(trajectory)
        trajectory.continue_in(world)
        await self._close_of(before)
        await self._place(ctx, world)

    async def end(self, ctx: Context) -> None:
        """Drops the trajectory and closes its world; does nothing if there is none."""
        # Before it is closed: a request that comes meanwhile is refused, and uses no world that is closing.
        trajectory = self._state.drop(ctx)
        if trajectory is not None:
            trajectory.end()
            await self._close_of(trajectory)

    @asynccontextmanager
    async def fresh(self, task: str, seed: int) -> AsyncGenerator[W]:
        """A world that belongs to no trajectory. Raises `ToolError` if there is no such task."""
        world = await self._begun(task, seed)
        try:
            yield world
        finally:
            await self._close(world)

    async def _begun(self, task: str, seed: int) -> W:
        with _unknown_task(task):
            return await awaited(self._begin(task, seed))

    async def _put(self, ctx: Context, trajectory: Trajectory[W]) -> None:
        before = self._state.find(ctx)
        try:
            # Refused where another trajectory has taken the last place while this world was made.
            self._state.reset(ctx, trajectory)
        except ToolError:
            await self._close_of(trajectory)
            raise
        if before is not None:
            before.end()
            await self._close_of(before)
        if self.placers:
            await self._place(ctx, trajectory.world)

    async def _place(self, ctx: Context, world: W) -> None:
        try:
            for placer in self.placers:
                await awaited(placer(world))
        except BaseException:  # a cancellation too: a world that was not placed must not stay
            self._state.drop(ctx)
            await self._close(world)
            raise

    async def _close_of(self, trajectory: Trajectory[W]) -> None:
        # With a closer every world is made within its reset.
        if self.closers:
            await self._close(trajectory.world)

    async def _close(self, world: W) -> None:
        # Shielded: no later request closes a world that this one has dropped, so a cancelled one closes it to the end.
        with anyio.move_on_after(CLOSE_S, shield=True) as bound:
            for closer in self.closers:
                await awaited(closer(world))
        if bound.cancelled_caught:
            log.warning("a world was not closed within %g s", CLOSE_S)


@contextmanager
def _unknown_task(task: str) -> Generator[None]:
    """Makes a refusal of the environment's LookupError."""
    try:
        yield
    except LookupError as error:
        raise ToolError(str(error.args[0]) if error.args else f"there is no task {task!r} here") from error
