"""State per trajectory, keyed by the trajectory id in each request's `_meta`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, cast

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError

TRAJECTORY_META = "mcp-rollout/trajectory"
SEED_META = "mcp-rollout/seed"

NO_TRAJECTORY = "no-trajectory"
"""The key of requests without a trajectory id, so that any MCP client can use the server."""

S = TypeVar("S")


class TrajectoryState(Generic[S]):
    """One `S` per trajectory; `state.of(ctx)` in a tool returns the request's.

    Args:
        factory: Makes the state of a trajectory at its first request, from the seed in the request's `_meta` (0
            without one). Without a factory a trajectory has no state before `reset`.
        max_trajectories: Maximum number of trajectories alive. A further one is refused and none is ever evicted:
            evicting a live trajectory would corrupt its reward silently.

    `drop` ends a trajectory. A later request for it (a call that was cancelled in transit, for example) is refused:
    new state would never be dropped.

    Tools that use this must be `async` and must not await between reading and writing their state, so that the event
    loop runs each of them without interruption. The SDK runs plain functions on worker threads.
    """

    def __init__(self, factory: Callable[[int], S] | None = None, *, max_trajectories: int = 4096) -> None:
        self._factory = factory
        self._max_trajectories = max_trajectories
        self._states: dict[str, S] = {}
        self._dropped: dict[str, None] = {}  # in order of dropping, at most max_trajectories of them

    def __len__(self) -> int:
        return len(self._states)

    def of(self, ctx: Context) -> S:
        """The state of the request's trajectory.

        Raises:
            ToolError: The trajectory has no state and gets none: no factory, dropped, or `max_trajectories` reached.
        """
        key = trajectory_of(ctx)
        if key in self._states:
            return self._states[key]
        if key in self._dropped:
            raise ToolError(f"trajectory {key!r} was released; call reset to start it again")
        if self._factory is None:
            raise ToolError(f"trajectory {key!r} has no state yet; call reset first")
        return self._put(ctx, self._factory(seed_of(ctx)))

    def find(self, ctx: Context) -> S | None:
        """The state of the request's trajectory, or None; makes none."""
        return self._states.get(trajectory_of(ctx))

    def check_room(self, ctx: Context) -> None:
        """Raises `ToolError` if `reset` would, so that callers can check before they make a state."""
        key = trajectory_of(ctx)
        if key not in self._states and len(self._states) >= self._max_trajectories:
            most = self._max_trajectories
            raise ToolError(
                f"this server already holds {most} trajectories, its max_trajectories; release one, or pass a larger "
                "max_trajectories where the server makes its Harness or TrajectoryState"
            )

    def reset(self, ctx: Context, state: S) -> S:
        """Sets the state of the request's trajectory.

        Raises:
            ToolError: `max_trajectories` other trajectories are alive.
        """
        return self._put(ctx, state)

    def drop(self, ctx: Context) -> S | None:
        """Ends the request's trajectory and returns its state, or None if it had none."""
        key = trajectory_of(ctx)
        dropped = self._states.pop(key, None)
        if key != NO_TRAJECTORY:  # a client without ids reuses this key for each of its states
            self._dropped[key] = None
            if len(self._dropped) > self._max_trajectories:
                del self._dropped[next(iter(self._dropped))]
        return dropped

    def _put(self, ctx: Context, state: S) -> S:
        self.check_room(ctx)
        key = trajectory_of(ctx)
        self._dropped.pop(key, None)
        self._states[key] = state
        return state


def trajectory_of(ctx: Context) -> str:
    """The request's trajectory id, or `NO_TRAJECTORY`. Raises `ToolError` if it is not a string."""
    value = _meta(ctx).get(TRAJECTORY_META, NO_TRAJECTORY)
    if not isinstance(value, str):
        raise ToolError(f"_meta[{TRAJECTORY_META!r}] must be a string")
    return value


def seed_of(ctx: Context) -> int:
    """The request's seed, or 0. Raises `ToolError` if it is not an integer."""
    value = _meta(ctx).get(SEED_META, 0)
    if not isinstance(value, int):
        raise ToolError(f"_meta[{SEED_META!r}] must be an integer")
    return value


def _meta(ctx: Context) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", ctx.request_context.meta or {})
