"""One trajectory, from a leased session to a scored trace. This file is the main path; read it first."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import anyio
import structlog

from gateway.errors import ConfigError, GatewayError
from gateway.gateway import Gateway
from gateway.leases.session import Session
from gateway.types import CallFault, ToolResult
from rollout.environment.config import Environment, ThinkingLoss
from rollout.errors import RolloutError
from rollout.loop.context import Context
from rollout.loop.filters import Filters, refused
from rollout.loop.generation import generate
from rollout.loop.limits import Limits
from rollout.loop.results import show
from rollout.loop.reward import score
from rollout.loop.user import User
from rollout.trace.record import StopReason, Trace
from rollout.trace.store import TraceStore
from rollout.types import Call, FinishReason, Message, Parsed, Policy, TokenBuilder

log = structlog.get_logger(__name__)

PolicyFor = Callable[[Session], Awaitable[Policy]]
"""How an engine gets its policy for one trajectory; a scripted expert asks the session for its script."""


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
    """Lease, play, score; the trace is on disk when this returns.

    A world that breaks ends in `StopReason.FAILED`, not in an exception, and keeps what was recorded until then.
    A trajectory that runs out of time keeps its whole turns and is scored like any other.

    Args:
        trace: just begun; it is filled, and returned.
        tools: OpenAI-style schemas to render, from the lock, and the only tools that can be called; where it is None,
            what the row selects of all the environment's.
    """
    began, task = time.monotonic(), trace.task
    names = task.tools if tools is None else [tool["function"]["name"] for tool in tools]
    try:
        async with gateway.lease(trajectory=trace.id, task=task.task, seed=task.seed, tools=names) as session:
            trace.lease_wait_s = session.lease_wait_s
            try:
                user = User(session, environment.user.server) if environment.user else None
                policy = await policy_for(session)
                schemas = [tool.openai_schema() for tool in session.tools.values()] if tools is None else tools
                context = Context(environment=environment, limits=limits, tokens=tokens, schemas=schemas)
                filters = Filters(environment.filters)
                with anyio.move_on_after(limits.wall_clock_s) as clock:
                    await play(trace, session, policy, user, context, filters)
                # Out of time in mid-generation: an engine may have handed over what it had, see `result_or_partial`.
                if clock.cancelled_caught or (clock.cancel_called and trace.stop_reason is StopReason.ABORTED):
                    trace.stop_reason = StopReason.TIME_LIMIT
                if not trace.is_withdrawn:
                    penalty = filters.settle(trace)
                    trace.reward = await score(environment.reward, environment.thinking.reward, trace, session, penalty)
                    await (
                        session.wait_for_tool_changes()
                    )  # a server may have changed its tools with the last call to it
            finally:
                trace.heard.add(session.drain_server_events())
    except (ConfigError, GatewayError, RolloutError) as error:  # the boundary where a broken world becomes a record
        log.warning("trajectory failed", trajectory=trace.id, code=error.code, error=str(error))
        trace.fail(error.code, str(error))
    except Exception as error:  # a defect: recorded like any failure, then raised to the caller
        trace.fail("internal_error", f"{type(error).__name__}: {error}")
        raise
    except BaseException:
        trace.fail("cancelled", "the trajectory was cancelled from outside")
        raise
    finally:
        trace.elapsed_s = time.monotonic() - began
        store.append(trace)
    return trace


async def play(
    trace: Trace, session: Session, policy: Policy, user: User | None, context: Context, filters: Filters
) -> None:
    """Take turns until a stop reason is set.

    Each turn appends its completion and its context in one piece, so a trajectory that is cut between two turns is
    whole up to there.
    """
    await open_conversation(trace, user)
    trace.heard.add(session.drain_server_events())
    trace.open(context.tokens.prompt(trace.messages, context.schemas))
    context.limits.check_prompt(trace)
    while trace.stop_reason is None:
        parsed = await take_turn(trace, policy, context, filters)
        if trace.stop_reason is not None:
            return
        try:
            if parsed.calls:
                answers = await call_tools(trace, session, parsed.calls, context)
            elif user is None:
                trace.stop_reason = StopReason.ANSWERED
                return
            else:
                answers = [await hear_user(trace, user, parsed.content)]
        finally:
            trace.turns[-1].heard.add(session.drain_server_events())
        context.add(trace, answers)


async def open_conversation(trace: Trace, user: User | None) -> None:
    """Start the user, whose opening message joins the prompt unless the row already ends with one."""
    if user is None:
        return
    opening = await user.start()
    if trace.messages[-1]["role"] != "user":
        trace.messages.append({"role": "user", "content": opening})


async def take_turn(trace: Trace, policy: Policy, context: Context, filters: Filters) -> Parsed:
    """Generate once and append what was sampled, as sampled.

    A generation that was aborted ends the trajectory, and so does one that was cut before it said anything whole: half
    a sentence is no answer, and no message to a user.
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
    parsed = await tokens.parse(completion.ids, context.schemas)
    edit = tokens.completion(trace.context, completion.ids)
    turn = trace.add_completion(completion, parsed, edit, mask_thinking=thinking.loss is ThinkingLoss.MASK)
    turn.generate_s = generate_s
    filters.judge(trace, completion, parsed)
    if completion.finish_reason is FinishReason.ABORT:
        trace.stop_reason = StopReason.ABORTED
    elif completion.finish_reason is FinishReason.LENGTH and not parsed.calls:
        trace.stop_reason = trace.stop_reason or StopReason.TOKEN_LIMIT
    return parsed


async def hear_user(trace: Trace, user: User, said: str) -> Message:
    """The user's reply, recorded, as a message."""
    event = await user.reply(said)
    trace.add_user(event)
    if event.done:
        trace.stop_reason = StopReason.USER_DONE
    return {"role": "user", "content": event.message}


async def call_tools(trace: Trace, session: Session, calls: Sequence[Call], context: Context) -> list[Message]:
    """Send the calls side by side, record them in their order, and return the messages that tell the policy.

    What is not sent is answered in the tool's place: a call that cannot be read, and calls beyond the limit. A
    trajectory that ends while calls are under way records those and their messages too: they may have taken effect.
    """
    most = context.limits.parallel_calls
    sendable = [index for index, call in enumerate(calls) if call.problem is None][:most]
    results = [
        ToolResult.error(call.problem, fault=CallFault.UNREADABLE)
        if call.problem
        else ToolResult.error(f"Not called: at most {most} calls per turn are sent.")
        for call in calls
    ]
    for index in sendable:
        results[index] = ToolResult.error("No answer: the trajectory ended while the call was under way.")

    async def send(index: int) -> None:
        call = calls[index]
        results[index] = await session.call(call.name, call.arguments if call.as_text is None else call.as_text)

    def recorded() -> list[Message]:
        cut = context.environment.results
        shown = [
            show(result, tool=call.name, config=cut, tokens=context.tokens)
            for call, result in zip(calls, results, strict=True)
        ]
        tools = [session.tools.get(call.name) if index in sendable else None for index, call in enumerate(calls)]
        messages = trace.add_calls(calls, results, shown, [tool.server if tool else None for tool in tools])
        trace.turns[-1].marks += refused(calls, sendable, session.tools)
        return messages

    try:
        await side_by_side([partial(send, index) for index in sendable])
    except BaseException:
        trace.messages += recorded()
        raise
    return recorded()


async def side_by_side(sends: Sequence[Callable[[], Coroutine[Any, Any, None]]]) -> None:
    """Await all; the first `GatewayError` cancels the others and is raised bare. One alone needs no task of its own."""
    if len(sends) == 1:
        await sends[0]()
        return
    try:
        async with anyio.create_task_group() as group:
            for send in sends:
                group.start_soon(send)
    except* GatewayError as broken:
        raise first_error(broken) from broken


def first_error(group: BaseExceptionGroup[GatewayError]) -> GatewayError:
    """The first error of a group; one broken call is enough to end a trajectory."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, GatewayError)
    return error
