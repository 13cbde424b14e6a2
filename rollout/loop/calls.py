"""The tool calls of one turn: send them concurrently, record them in the order of the completion."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import anyio

from mcp_rollout.gateway.errors import GatewayError
from mcp_rollout.gateway.types import CallFault, ToolResult
from mcp_rollout.rollout.errors import Diverged
from mcp_rollout.rollout.loop.context import Context
from mcp_rollout.rollout.loop.filters import refused
from mcp_rollout.rollout.loop.results import show
from mcp_rollout.rollout.loop.spans import Spans
from mcp_rollout.rollout.trace.record import StopReason, Trace
from mcp_rollout.rollout.types import Call, Message, TurnSession

UNDER_WAY = ToolResult.error("No answer: the trajectory ended while the call was under way.")


def sendable(calls: Sequence[Call], most: int) -> tuple[list[int], list[ToolResult]]:
    """The positions of the calls that are sent, and a result for each call until it has one of its own."""
    sent = [index for index, call in enumerate(calls) if call.problem is None][:most]
    results = [UNDER_WAY if index in sent else too_many(most) for index in range(len(calls))]
    for index, call in enumerate(calls):
        if call.problem is not None:
            results[index] = ToolResult.error(call.problem, fault=CallFault.UNREADABLE)
    return sent, results


def too_many(most: int) -> ToolResult:
    return ToolResult.error(f"Not called: at most {most} calls per turn are sent.")


async def call_tools(
    trace: Trace, session: TurnSession, calls: Sequence[Call], context: Context, *, into: list[Message]
) -> None:
    """Send the calls concurrently, record them in order, and append their tool messages to `into`.

    An unreadable call and calls beyond `limits.parallel_calls` are not sent; each gets an error result. If the
    trajectory ends while calls are in flight, those are recorded with an error result: they may have taken effect. A
    call that a replay found to differ is recorded with its result.

    Raises:
        GatewayError: the world broke under one of the calls; the others were cancelled.
    """
    sent, results = sendable(calls, context.limits.parallel_calls)
    clocks: dict[int, tuple[float, float]] = {}
    try:
        await _send(session, calls, sent, results, clocks, context.spans)
    finally:
        # Also where the time limit, a cancellation or a broken world ends the calls. Nothing here awaits, so the record
        # is complete before the exception goes on.
        into += _recorded(trace, session, calls, sent, results, clocks, context)


async def _send(
    session: TurnSession,
    calls: Sequence[Call],
    sent: Sequence[int],
    results: list[ToolResult],
    clocks: dict[int, tuple[float, float]],
    spans: Spans,
) -> None:
    """Put the result of each call in its position; the first `GatewayError` cancels the other calls.

    Args:
        clocks: by position, when a call began, in seconds since 1970, and the seconds that it took.
    """
    broken: list[GatewayError] = []

    async def send(index: int) -> None:
        call, began_at, began = calls[index], time.time(), time.perf_counter()
        clocks[index] = (began_at, 0.0)
        with spans.call(call, index, results):
            try:
                results[index] = await session.call(call.name, call.arguments if call.as_text is None else call.as_text)
            except Diverged as error:
                # Answered, but not as recorded: the trace keeps the answer that ended the attempt.
                results[index] = error.result or results[index]
                raise
        clocks[index] = (began_at, time.perf_counter() - began)

    async def send_until_broken(index: int) -> None:
        try:
            await send(index)
        except GatewayError as error:
            broken.append(error)
            # The trajectory is withdrawn with the first broken call, so waiting for the others would only delay that.
            tasks.cancel_scope.cancel()

    if len(sent) == 1:  # no task group, which would wrap other exceptions in an exception group
        await send(sent[0])
        return
    async with anyio.create_task_group() as tasks:
        for index in sent:
            tasks.start_soon(send_until_broken, index)
    if broken:
        raise broken[0]


def _recorded(
    trace: Trace,
    session: TurnSession,
    calls: Sequence[Call],
    sent: Sequence[int],
    results: Sequence[ToolResult],
    clocks: Mapping[int, tuple[float, float]],
    context: Context,
) -> list[Message]:
    cut, tokens = context.environment.results, context.tokens
    shown = [
        show(result, tool=call.name, config=cut, tokens=tokens) for call, result in zip(calls, results, strict=True)
    ]
    tools = [session.tools.get(call.name) if index in sent else None for index, call in enumerate(calls)]
    messages = trace.add_calls(calls, results, shown, [tool.server if tool else None for tool in tools])
    for index, (began_at, total_s) in clocks.items():
        event = trace.turns[-1].tools[index]
        event.began_at, event.wait_s = began_at, max(0.0, total_s - event.elapsed_s)
    if any(result.ends_world for result in results):
        trace.stop_reason = trace.stop_reason or StopReason.WORLD_DONE
    trace.turns[-1].marks += refused(calls, sent, session.tools, results)
    return messages
