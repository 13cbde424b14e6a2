"""Reward components: ours, which read what the policy wrote and no tool results, and a user's Python functions."""

from __future__ import annotations

import asyncio
import inspect
import math
import re
import unicodedata
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, cast

import anyio
import anyio.to_thread

from gateway.config.user_code import import_function
from gateway.errors import ConfigError
from gateway.types import CallFault
from rollout.environment.reward_config import Component, RewardConfig
from rollout.errors import RewardError
from rollout.loop.limits import cancellations
from rollout.trace.record import Trace
from rollout.types import FinishReason


def components(config: RewardConfig, trace: Trace) -> dict[Component, float]:
    """Compute the components with a weight, each in [0, 1].

    Raises:
        ConfigError: `exact_match` has a weight, and the row has no ground truth.
    """
    return {component: _COMPUTED[component](config, trace) for component in config.computed}


def exact_match(config: RewardConfig, trace: Trace) -> float:
    """1 if the last answer equals the row's ground truth, as numbers if both are, else as normalised text."""
    truth = trace.task.answer
    if not truth:
        raise ConfigError(
            "exact_match needs the row's ground truth",
            file=trace.task.environment,
            key="reward_model.ground_truth",
            remedy="let the server's `tasks` tool give each task an `answer`, or write it into the rows",
        )
    answers = bool(trace.turns) and not trace.turns[-1].tools and not trace.ends_undelivered
    answer = trace.turns[-1].content if answers else ""
    if config.answer_pattern is not None:
        matches = re.findall(config.answer_pattern, answer)
        answer = matches[-1] if matches else ""
    return float(same_answer(answer, truth))


def same_answer(one: str, other: str) -> bool:
    """Compare two answers: `1,000.0` equals `1000`, ` The Nile.` equals `the nile`, and an empty answer equals none."""
    left, right = _normalised(one), _normalised(other)
    numbers = _number(left), _number(right)
    return numbers[0] == numbers[1] if None not in numbers else bool(left) and left == right


def valid_calls(config: RewardConfig, trace: Trace) -> float:
    """The share of valid calls; 0 without any call, or a policy that never calls would score best.

    Calls beyond the parallel limit were not validated and do not count, or writing many would raise the share.
    """
    events = [event for turn in trace.turns for event in turn.tools]
    mistakes = sum(event.fault is not None and event.fault.is_mistake for event in events)
    sent = sum(event.server is not None for event in events if event.fault is None or not event.fault.is_mistake)
    return sent / (sent + mistakes) if sent + mistakes else 0.0


def well_formed(config: RewardConfig, trace: Trace) -> float:
    """The share of turns that ended with the stop token and have no unreadable call."""
    well = [
        turn.finish_reason is FinishReason.STOP and all(event.fault is not CallFault.UNREADABLE for event in turn.tools)
        for turn in trace.turns
    ]
    return sum(well) / len(well) if well else 0.0


def brevity(config: RewardConfig, trace: Trace) -> float:
    """The length penalty of DAPO (arXiv 2503.14476, section 3.4), inverted: 1 is short, 0 is too long."""
    assert config.brevity is not None
    sampled = sum(turn.sampled for turn in trace.turns)
    room = config.brevity.none_from - config.brevity.full_until
    return min(1.0, max(0.0, (config.brevity.none_from - sampled) / room))


_COMPUTED: Mapping[Component, Callable[[RewardConfig, Trace], float]] = {
    Component.EXACT_MATCH: exact_match,
    Component.VALID_CALLS: valid_calls,
    Component.FORMAT: well_formed,
    Component.BREVITY: brevity,
}


def _normalised(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).strip(".,;:!?\"'`*$ ")


def _number(text: str) -> Decimal | None:
    try:
        number = Decimal(text.replace(",", ""))
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


@dataclass(frozen=True, kw_only=True, slots=True)
class WorldScore:
    """What the server's score tool returned; 0 without parts where the environment has none."""

    score: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict[str, float])


async def function_parts(config: RewardConfig, trace: Trace, world: WorldScore) -> dict[str, float]:
    """Call the functions, in their order, each as `function(trace, world)`.

    One that is not a coroutine function runs in a thread, so that it can take its time. It must not change the trace.

    Raises:
        ConfigError: a function cannot be imported.
        RewardError: one raises, takes longer than `function_timeout_s`, or returns no finite number.
    """
    return {
        name: await _computed(name, path, config.function_timeout_s, trace, world)
        for name, path in config.functions.items()
    }


@contextmanager
def users_reward(what: str, timeout_s: float, *, key: str) -> Generator[None]:
    """The boundary of a user's reward: RewardError where it raises, or takes longer than `key` allows."""
    requests = cancellations()
    try:
        with anyio.fail_after(timeout_s):
            yield
    except TimeoutError as error:
        raise RewardError(f"{what} took longer than {key}={timeout_s:g}") from error
    except (Exception, SystemExit, asyncio.CancelledError) as error:  # the boundary of a user's function
        if isinstance(error, asyncio.CancelledError) and cancellations() > requests:
            raise
        raise RewardError(f"{what} raised {type(error).__name__}: {error}") from error


async def _computed(name: str, path: str, timeout_s: float, trace: Trace, world: WorldScore) -> float:
    function = cast("Callable[[Trace, WorldScore], Any]", import_function(path, key=f"reward.functions.{name}"))
    with users_reward(path, timeout_s, key="function_timeout_s"):
        if inspect.iscoroutinefunction(function):
            value = await function(trace, world)
        else:
            # A thread cannot be ended: one that outlasts its time goes on, and its result is dropped.
            value = await anyio.to_thread.run_sync(function, trace, world, abandon_on_cancel=True)
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return float(value)
    raise RewardError(f"{path} returned {value!r:.100}, which is not a finite number")
