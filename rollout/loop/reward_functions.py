"""Reward components that a user's Python functions compute."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
import anyio.to_thread

from rollout.environment.reward_config import RewardConfig
from rollout.environment.user_code import import_function
from rollout.errors import RewardError
from rollout.trace.record import Trace


@dataclass(frozen=True, kw_only=True, slots=True)
class WorldScore:
    """What the server's score tool returned; 0 without parts where the environment has none."""

    score: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict[str, float])


async def function_parts(config: RewardConfig, trace: Trace, world: WorldScore) -> dict[str, float]:
    """Call the functions, in their order, each as `function(trace, world)`.

    One that is no coroutine function runs in a thread, so that it can take its time. It must not change the trace.

    Raises:
        ConfigError: a function cannot be imported.
        RewardError: one raises, takes longer than `function_timeout_s`, or returns no finite number.
    """
    return {
        name: await _computed(name, path, config.function_timeout_s, trace, world)
        for name, path in config.functions.items()
    }


async def _computed(name: str, path: str, timeout_s: float, trace: Trace, world: WorldScore) -> float:
    function = cast("Callable[[Trace, WorldScore], Any]", import_function(path, key=f"reward.functions.{name}"))
    try:
        with anyio.fail_after(timeout_s):
            if inspect.iscoroutinefunction(function):
                value = await function(trace, world)
            else:
                # A thread cannot be ended: one that outlasts its time goes on, and its result is dropped.
                value = await anyio.to_thread.run_sync(function, trace, world, abandon_on_cancel=True)
    except TimeoutError as error:
        raise RewardError(f"{path} took longer than function_timeout_s={timeout_s:g}") from error
    except Exception as error:  # the boundary of a user's function, which can raise anything
        raise RewardError(f"{path} raised {type(error).__name__}: {error}") from error
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return float(value)
    raise RewardError(f"{path} returned {value!r:.100}, which is no finite number")
