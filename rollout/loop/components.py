"""Reward components: ours, which read what the policy wrote and no tool results, and a user's Python functions."""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import re
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress
from pathlib import Path
from statistics import fmean
from traceback import extract_tb
from typing import Any, cast

import anyio
import anyio.to_thread

from mcp_rollout.gateway.config.user_code import import_function
from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.gateway.types import CallFault
from mcp_rollout.rollout.environment.matching import compare
from mcp_rollout.rollout.environment.reward_config import Component, RewardConfig
from mcp_rollout.rollout.environment.task import VerlColumns
from mcp_rollout.rollout.errors import RewardError
from mcp_rollout.rollout.loop.limits import cancellations
from mcp_rollout.rollout.trace.record import Trace, Turn
from mcp_rollout.rollout.types import FinishReason, Message

_LIBRARY = f"{Path(__file__).parents[1]}{os.sep}"


async def components(config: RewardConfig, trace: Trace) -> dict[Component, float]:
    """Compute the components with a weight, each in [0, 1].

    Raises:
        ConfigError: `exact_match` has a weight, and the row has no ground truth.
    """
    needs_answer = Component.EXACT_MATCH in config.computed or (config.compares_answers and trace.task.answer)
    answered = await exact_match(config, trace) if needs_answer else 0.0
    return {component: _COMPUTED[component](config, trace, answered) for component in config.computed}


async def exact_match(config: RewardConfig, trace: Trace) -> float:
    """1 if the last answer is the row's ground truth, compared by `match`."""
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
        found = re.findall(config.answer_pattern, answer)
        answer = found[-1] if found else ""
    return float(await compare(config.match, answer, truth, timeout_s=config.function_timeout_s))


def checks(config: RewardConfig, trace: Trace, answered: float) -> float:
    """The share of the row's checks that held; 0 without any."""
    return fmean([each.holds for each in trace.checks] or [0.0])


def solved(config: RewardConfig, trace: Trace, answered: float) -> float:
    """The share of what the row asks for that holds: its answer and each of its checks; 0 if it asks for nothing."""
    answer = [answered] if trace.task.answer else []
    return fmean([*answer, *(each.holds for each in trace.checks)] or [0.0])


def valid_calls(config: RewardConfig, trace: Trace, answered: float) -> float:
    """The share of valid calls; 0 without any call, or a policy that never calls would score best.

    Calls beyond the parallel limit were not validated and do not count, or writing many would raise the share.
    """
    events = [event for turn in trace.turns for event in turn.tools]
    mistakes = sum(event.fault is not None and event.fault.is_mistake for event in events)
    sent = sum(event.server is not None for event in events if event.fault is None or not event.fault.is_mistake)
    return sent / (sent + mistakes) if sent + mistakes else 0.0


def well_formed(config: RewardConfig, trace: Trace, answered: float) -> float:
    """The share of turns that ended with the stop token and have no unreadable call."""
    well = [
        turn.finish_reason is FinishReason.STOP and all(event.fault is not CallFault.UNREADABLE for event in turn.tools)
        for turn in trace.turns
    ]
    return sum(well) / len(well) if well else 0.0


def brevity(config: RewardConfig, trace: Trace, answered: float) -> float:
    """The length penalty of DAPO (arXiv 2503.14476, section 3.4), inverted: 1 is short, 0 is too long."""
    assert config.brevity is not None
    sampled = sum(turn.sampled for turn in trace.turns)
    room = config.brevity.none_from - config.brevity.full_until
    return min(1.0, max(0.0, (config.brevity.none_from - sampled) / room))


EXTRA_KEY = "mcp_trajectory"
"""What a reward function with verl's arguments finds in `extra_info`, beside what the row has there."""
_COMPUTED: Mapping[Component, Callable[[RewardConfig, Trace, float], float]] = {
    Component.EXACT_MATCH: lambda config, trace, answered: answered,
    Component.CHECKS: checks,
    Component.SOLVED: solved,
    Component.VALID_CALLS: valid_calls,
    Component.FORMAT: well_formed,
    Component.BREVITY: brevity,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class WorldScore:
    """What the server's score tool returned; 0 without parts where the environment has none."""

    score: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict[str, float])


def seen_by_rewards(trace: Trace) -> Trace:
    """The trace with unreadable calls apart from those that were made, or paying for calls would pay for them.

    They are in `Turn.unreadable`; no message has them, or what the policy was told about them.
    """
    if not any(event.fault is CallFault.UNREADABLE for turn in trace.turns for event in turn.tools):
        return trace
    messages, turns = trace.messages[: trace.opening], list[Turn]()
    for number, turn in enumerate(trace.turns):
        readable = [event.fault is not CallFault.UNREADABLE for event in turn.tools]
        first, *results = trace.messages_of(number)
        message, begins_at = dict(first), len(messages)
        calls: list[Any] = message.pop("tool_calls", [])
        if calls := list(compress(calls, readable)):
            message["tool_calls"] = calls
        messages += [message, *compress(results, readable), *results[len(readable) :]]
        unreadable = [event for event in turn.tools if event.fault is CallFault.UNREADABLE]
        turns.append(replace(turn, tools=list(compress(turn.tools, readable)), begins_at=begins_at))
        object.__setattr__(turns[-1], "unreadable", unreadable)  # of these copies alone, which no record has
    return replace(trace, messages=messages, turns=turns)


async def function_parts(
    config: RewardConfig, trace: Trace, world: WorldScore, messages: Sequence[Message]
) -> dict[str, float]:
    """Call the functions, in their order, each as `function(trace, world)`, or with verl's arguments.

    One that is not a coroutine function runs in a thread, so that it can take its time. It must not change the trace.

    Args:
        messages: the conversation as the `score` tool gets it.

    Raises:
        ConfigError: a function cannot be imported.
        RewardError: one raises, takes longer than `function_timeout_s`, or returns no finite number.
    """
    seen = seen_by_rewards(trace)
    return {
        name: await _computed(name, path, config.function_timeout_s, seen, world, messages)
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
        raise RewardError(f"{what} raised {_told(error)}") from error


def _told(error: BaseException) -> str:
    """The error and where the user's code raised it. Ray's `RayTaskError` has its cause, and its traceback as text."""
    cause: object = getattr(error, "cause", None)
    if isinstance(cause, BaseException):
        places = re.findall(r'File "(.+)", line (\d+)', str(error))
    else:
        cause, places = error, [(frame.filename, frame.lineno) for frame in extract_tb(error.__traceback__)]
    own = [f"{file}:{line}" for file, line in places if "/lib/python" not in file and not file.startswith(_LIBRARY)]
    text = f"{type(cause).__name__}: {cause}".rstrip(": ")
    return f"{text} ({own[-1]})" if own else text


async def _computed(
    name: str, path: str, timeout_s: float, trace: Trace, world: WorldScore, messages: Sequence[Message]
) -> float:
    function = import_function(path, key=f"reward.functions.{name}")
    with users_reward(path, timeout_s, key="function_timeout_s"):
        if "solution_str" in inspect.signature(function).parameters:
            call = partial(function, **_verls_arguments(trace, world, messages))
        else:
            call = partial(function, trace, world)
        if inspect.iscoroutinefunction(function):
            value = await cast("Callable[[], Awaitable[Any]]", call)()
        else:
            # A thread cannot be ended: one that outlasts its time goes on, and its result is dropped.
            value = await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
    if isinstance(value, Mapping):  # as verl's functions may return it
        value = cast("Mapping[str, Any]", value).get("score")
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return float(value)
    raise RewardError(f"{path} returned {value!r:.100}, which is not a finite number")


def _verls_arguments(trace: Trace, world: WorldScore, messages: Sequence[Message]) -> dict[str, Any]:
    """The arguments of verl's `compute_score`; the solution is what the policy wrote, without what tools returned."""
    row = trace.task.verl or VerlColumns()
    written = [str(message["content"]) for message in messages[trace.opening :] if message["role"] == "assistant"]
    return {
        "data_source": row.data_source or trace.task.environment,
        "solution_str": "\n".join(written),
        "ground_truth": trace.task.answer if row.ground_truth is None else row.ground_truth,
        "extra_info": {**row.extra_info, EXTRA_KEY: {"messages": messages, "trace": trace, "world": world}},
    }
