"""One trajectory, from a leased session to a scored trace. This file is the main path; read it first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast
from uuid import uuid4

import structlog

from mcp_rollout.gateway.errors import ConfigError, GatewayError, WorldLost
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.sections import Strategy
from mcp_rollout.rollout.errors import Diverged, RolloutError
from mcp_rollout.rollout.loop.agent import Reopens, build_agent
from mcp_rollout.rollout.loop.clock import Clock
from mcp_rollout.rollout.loop.context import Context
from mcp_rollout.rollout.loop.filters import Filters
from mcp_rollout.rollout.loop.group import Group, leaf_of
from mcp_rollout.rollout.loop.limits import Limits, cancellations
from mcp_rollout.rollout.loop.reduced import ReducedContext
from mcp_rollout.rollout.loop.reward import TrainersReward, score
from mcp_rollout.rollout.loop.rubric import DIRECTORY as JUDGEMENTS
from mcp_rollout.rollout.loop.spans import Spans, spans_of_this_program
from mcp_rollout.rollout.loop.supervision import supervise
from mcp_rollout.rollout.loop.turns import Turns
from mcp_rollout.rollout.loop.user import User
from mcp_rollout.rollout.loop.world_calls import prepare
from mcp_rollout.rollout.trace.record import Failure, Trace
from mcp_rollout.rollout.trace.store import TraceStore
from mcp_rollout.rollout.types import Policy, TokenBuilder

log = structlog.get_logger(__name__)

PolicyFor = Callable[[Session], Awaitable[Policy]]
"""Builds the policy of one trajectory. A scripted expert reads its script from the session."""


async def roll_out(
    trace: Trace,
    *,
    environment: Environment,
    gateway: Gateway,
    policy_for: PolicyFor,
    tokens: TokenBuilder,
    limits: Limits,
    store: TraceStore,
    tools: Sequence[dict[str, Any]] | None = None,
    group: Group | None = None,
    trainers_reward: TrainersReward | None = None,
    clock: Clock | None = None,
) -> Trace:
    """Lease a session, let the agent play the trajectory, score it. The trace is on disk when this returns or raises.

    A world that breaks ends in `StopReason.FAILED`, without an exception, and the trace keeps what was recorded until
    then; so does an agent that fails. Where the world was lost, the trajectory begins again, up to `limits.attempts`
    times in all: `trace` becomes the last attempt, and each one is on disk under its own id. A trajectory that runs out
    of time keeps its complete turns and is scored like any other.

    Args:
        trace: a new trace; it is filled and returned.
        tools: OpenAI-style schemas from the lock, with the task's later tools. Only these are rendered and can be
            called; None offers the environment's tools that the row selects.
        group: the trajectory's siblings, with which a tree grows; without it a leaf of a tree is a chain.
        trainers_reward: the trainer's own reward, beside the environment's.
        clock: what the trajectory's time is taken by; None for a clock that never stops.
    """
    play = partial(
        _play,
        environment=environment,
        gateway=gateway,
        policy_for=policy_for,
        tokens=tokens,
        limits=limits,
        store=store,
        tools=tools,
        group=group,
        trainers_reward=trainers_reward,
        clock=clock or Clock(),
    )
    try:
        await play(trace)
        while _begins_again(trace, environment.limits.attempts):
            trace.begin_again(uuid4().hex)
            await play(trace)
    finally:
        if group is not None:
            # In `finally`: branches wait for this trajectory, also when it failed or was cancelled.
            group.leave(trace.origin.sample, trace)
    return trace


def _begins_again(trace: Trace, attempts: int) -> bool:
    """Whether an attempt that failed is followed by another one.

    A branch diverges where its replay differs from its parent's record: its world is no longer the parent's. It is
    rolled out again as a chain, once: `strategy.diverged` is set, so `leaf_of` makes no second branch.
    """
    match trace.failure:
        case Failure(kind=Diverged.code):
            return True
        case Failure(kind=WorldLost.code):
            return trace.worlds_lost + 1 < attempts
        case _:
            return False


async def _play(
    trace: Trace,
    *,
    environment: Environment,
    gateway: Gateway,
    policy_for: PolicyFor,
    tokens: TokenBuilder,
    limits: Limits,
    store: TraceStore,
    tools: Sequence[dict[str, Any]] | None,
    group: Group | None,
    trainers_reward: TrainersReward | None,
    clock: Clock,
) -> None:
    """Play the trajectory once, into its trace."""
    task, trace.agent, trace.strategy.use = trace.task, environment.agent, environment.strategy.use
    names = task.tools if tools is None else [tool["function"]["name"] for tool in tools]
    later = task.later_tools
    # Tools that only the task's setup and checks call: leased like later tools, and never revealed.
    hidden = () if names is None else sorted(task.world_tools - {*names, *later})
    spans = spans_of_this_program()
    async with recorded(trace, store, spans):
        agent = build_agent(environment) or ToolAgent()
        # Before the lease: a branch that held slots while it waited could keep its own root from getting any.
        leaf = await leaf_of(trace, environment, group)
        async with gateway.lease(
            trajectory=trace.id,
            task=task.task,
            seed=task.seed,
            tools=names,
            later_tools=(*later, *hidden),
            identity=trace.origin.identity,
        ) as session:
            trace.lease_wait_s = session.lease_wait_s
            try:
                trace.setup = await prepare(session, task.setup, where=task.where or f"row {trace.origin.row}")
                world, policy = leaf.joined(trace, session, await policy_for(session))
                user = User(world, environment.user.server) if environment.user else None
                offered = [*session.tools.values(), *session.later_tools.values()]
                # With the later tools: completions are parsed by the schemas of all callable tools, whether the prompt
                # has them or not.
                if tools is None:
                    schemas = [tool.openai_schema() for tool in offered if tool.exposed_name not in hidden]
                else:
                    schemas = tools
                kind = ReducedContext if environment.strategy.use is Strategy.SINGLE_TURN else Context
                context = kind(
                    environment=environment,
                    limits=limits,
                    tokens=tokens,
                    schemas=[schema for schema in schemas if schema["function"]["name"] not in later],
                    callable_schemas=schemas,
                    spans=spans,
                    clock=clock,
                )
                filters = Filters(environment.filters)
                turns_type = agent.turns_type if isinstance(agent, Reopens) else Turns
                turns = turns_type(trace, world, policy, user, context, filters, copies=environment.agent is not None)
                await supervise(agent, turns, trace)
                # An agent may return early, before its replay has reached the branching point.
                leaf.check()
                trace.control_text = tokens.control_text(trace.messages, context.schemas)
                if not trace.is_withdrawn:
                    penalty = filters.settle(trace, limits.tokens_left(trace) / limits.response_tokens)
                    kept = store.directory / JUDGEMENTS
                    # Within the lease: the server scores the state that this trajectory left.
                    trace.reward = await score(
                        environment, trace, session, penalty, judgements=kept, trainers=trainers_reward
                    )
                    # The last call may have changed the server's tools; the notification can arrive after the result.
                    await session.wait_for_tool_changes()
            finally:
                # What servers sent outside of turns: at the reset, while scoring, or when the agent failed.
                trace.server_events.add(session.drain_server_events())


class ToolAgent:
    """The built-in agent: generate, call the tools or ask the user, and so on until a limit, the user or an answer.

    Every method of `turns` ends the loop by raising `TrajectoryOver`. Cancellation can arrive at every `await`; the
    trace stays consistent, because a turn appends its completion, and later its tool results or user message, each
    without an `await` in between.
    """

    async def play(self, turns: Turns) -> None:
        while True:
            parsed = await turns.generate()
            if parsed.calls:
                await turns.call_tools()
            elif turns.has_user:
                await turns.ask_user()
            else:
                return


@asynccontextmanager
async def recorded(trace: Trace, store: TraceStore, spans: Spans) -> AsyncGenerator[None]:
    """The failure boundary of a trajectory: whatever happens in the block, its trace is written at the end.

    A broken world, a wrong configuration and a failed engine are recorded as the trace's failure and not raised, since
    the caller withdraws such a trajectory. A defect of this program and a cancellation from outside are recorded and
    raised.
    """
    trace.began_at, began, requests = time.time(), time.monotonic(), cancellations()
    store.heartbeat.begin(trace)
    try:
        with spans.trajectory(trace):
            yield
    except (ConfigError, GatewayError, RolloutError) as error:
        log.warning("trajectory failed", trajectory=trace.id, code=error.code, error=str(error))
        trace.fail(error.code, str(error))
        forget_frames(error)
    except Exception as error:  # boundary: a defect of this program
        trace.fail("internal_error", f"{type(error).__name__}: {error}")
        raise
    except BaseException as error:  # what is left is a cancellation or the end of the process
        if isinstance(error, asyncio.CancelledError) and cancellations() == requests:
            stray = RuntimeError("CancelledError was raised in a trajectory whose task was not cancelled")
            trace.fail("internal_error", str(stray))
            raise stray from error
        trace.fail("cancelled", "the trajectory was cancelled from outside")
        raise
    finally:
        # Written before the exception goes on, so that verl gets no result whose trace is not on disk.
        trace.elapsed_s = time.monotonic() - began
        await store.write(trace)


def forget_frames(error: BaseException) -> None:
    """Drop the tracebacks of a handled error and of those it came from.

    Their frames hold the error themselves, so that everything in them, a whole trace among it, would wait for the
    garbage collector.
    """
    # An error of an agent's own can be among those that it came from.
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()  # not of errors, which may be unhashable
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        BaseException.with_traceback(each, None)  # not by assignment, which an error can refuse
        waiting += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            waiting += cast("BaseExceptionGroup[BaseException]", each).exceptions
