"""One trajectory, from a leased session to a scored trace. This file is the main path; read it first."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import anyio
import structlog

from gateway.errors import ConfigError, GatewayError
from gateway.gateway import Gateway
from gateway.leases.session import Session
from rollout.environment.config import Environment, ThinkingLoss
from rollout.errors import RolloutError
from rollout.loop.calls import call_tools
from rollout.loop.context import Context
from rollout.loop.filters import Filters
from rollout.loop.limits import Limits, is_time_over, shielded
from rollout.loop.reward import score
from rollout.loop.thinking import generate
from rollout.loop.user import User
from rollout.trace.record import StopReason, Trace
from rollout.trace.store import TraceStore
from rollout.types import FinishReason, Parsed, Policy, TokenBuilder

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
) -> Trace:
    """Lease a session, play the trajectory, score it. The trace is on disk when this returns or raises.

    A world that breaks ends in `StopReason.FAILED`, without an exception, and the trace keeps what was recorded until
    then. A trajectory that runs out of time keeps its complete turns and is scored like any other.

    Args:
        trace: a new trace; it is filled and returned.
        tools: OpenAI-style schemas from the lock, with the task's later tools. Only these are rendered and can be
            called; None offers the environment's tools that the row selects.
    """
    task = trace.task
    names = task.tools if tools is None else [tool["function"]["name"] for tool in tools]
    later = task.later_tools
    with recorded(trace, store):
        async with gateway.lease(
            trajectory=trace.id, task=task.task, seed=task.seed, tools=names, later_tools=later
        ) as session:
            trace.lease_wait_s = session.lease_wait_s
            try:
                user = User(session, environment.user.server) if environment.user else None
                policy = await policy_for(session)
                offered = [*session.tools.values(), *session.later_tools.values()]
                schemas = [tool.openai_schema() for tool in offered] if tools is None else tools
                context = Context(
                    environment=environment,
                    limits=limits,
                    tokens=tokens,
                    schemas=[schema for schema in schemas if schema["function"]["name"] not in later],
                    callable_schemas=schemas,
                )
                filters = Filters(environment.filters)
                # The clock starts here, after the wait for the lease, and cancels nothing outside `play`: the session
                # stays open, so that a trajectory that ran out of time can still be scored. A policy may shield its
                # generation; then that ends first.
                with anyio.move_on_after(limits.wall_clock_s) as clock:
                    await play(trace, session, policy, user, context, filters)
                # An engine that is cancelled while it generates may return its partial completion instead of raising
                # (`finish_reason` ABORT); then the scope catches nothing, though its deadline has passed.
                if clock.cancelled_caught or (clock.cancel_called and trace.stop_reason is StopReason.ABORTED):
                    trace.stop_reason = StopReason.TIME_LIMIT
                if not trace.is_withdrawn:
                    penalty = filters.settle(trace)
                    trace.reward = await score(environment.reward, environment.thinking.reward, trace, session, penalty)
                    # The last call may have changed the server's tools; the notification can arrive after the result.
                    await session.wait_for_tool_changes()
            finally:
                trace.server_events.add(session.drain_server_events())
    return trace


async def play(
    trace: Trace, session: Session, policy: Policy, user: User | None, context: Context, filters: Filters
) -> None:
    """Take turns until a stop reason is set.

    Cancellation can arrive at every `await` here. The trace stays consistent, because a turn appends its completion,
    and later its tool results or user message, each without an `await` in between.
    """
    if user is not None:
        await user.open(trace)
    trace.server_events.add(session.drain_server_events())
    trace.open(context.tokens.prompt(trace.messages, context.schemas))
    context.limits.check_prompt(trace)
    while trace.stop_reason is None:
        parsed = await take_turn(trace, policy, context, filters)
        if trace.stop_reason is not None:
            return
        try:
            if parsed.calls:
                answers = await call_tools(trace, session, parsed.calls, context)
            elif user is not None:
                answers = [await user.answer(trace, parsed.content)]
            else:
                trace.stop_reason = StopReason.ANSWERED
                return
        finally:
            trace.turns[-1].server_events.add(session.drain_server_events())
        context.add(trace, answers)


async def take_turn(trace: Trace, policy: Policy, context: Context, filters: Filters) -> Parsed:
    """Generate once, append the ids exactly as sampled, and apply the filters.

    The trajectory ends with a generation that was aborted or outlasted its time, and with one that the length limit cut
    before a readable call: part of a sentence is neither an answer nor a message to a user.
    """
    began, thinking, tokens = time.monotonic(), context.environment.thinking, context.tokens
    completion = await generate(
        policy,
        tokens,
        trace.context,
        max_tokens=context.limits.completion_tokens(trace),
        turn=len(trace.turns),
        thinking=thinking.tokens_per_turn,
    )
    generate_s = time.monotonic() - began
    # Shielded, so that what was sampled is recorded where the time ran out during the generation.
    parsed = await shielded(tokens.parse(completion.ids, context.callable_schemas))
    edit = tokens.completion(trace.context, completion.ids)
    turn = trace.add_completion(completion, parsed, edit, mask_thinking=thinking.loss is ThinkingLoss.MASK)
    turn.generate_s = generate_s
    filters.judge(trace, completion, parsed)
    if completion.finish_reason is FinishReason.ABORT:
        trace.stop_reason = StopReason.ABORTED
    elif is_time_over():
        trace.stop_reason = trace.stop_reason or StopReason.TIME_LIMIT
    elif completion.finish_reason is FinishReason.LENGTH and not parsed.calls:
        trace.stop_reason = trace.stop_reason or StopReason.TOKEN_LIMIT
    return parsed


@contextmanager
def recorded(trace: Trace, store: TraceStore) -> Generator[None]:
    """The failure boundary of a trajectory: whatever happens in the block, its trace is written at the end.

    A broken world, a wrong configuration and a failed engine are recorded as the trace's failure and not raised, since
    the caller withdraws such a trajectory. A defect of this program and a cancellation from outside are recorded and
    raised.
    """
    began = time.monotonic()
    try:
        yield
    except (ConfigError, GatewayError, RolloutError) as error:
        log.warning("trajectory failed", trajectory=trace.id, code=error.code, error=str(error))
        trace.fail(error.code, str(error))
    except Exception as error:
        trace.fail("internal_error", f"{type(error).__name__}: {error}")
        raise
    except BaseException:
        trace.fail("cancelled", "the trajectory was cancelled from outside")
        raise
    finally:
        trace.elapsed_s = time.monotonic() - began
        store.append(trace)
