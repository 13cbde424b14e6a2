"""The harness's own calls of a task: those that prepare its world, and those that examine it. The policy sees none."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TypeVar

from mcp_rollout.gateway.errors import GatewayError, HarnessError
from mcp_rollout.gateway.leases.sending import caused_by_policy
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.gateway.types import ToolDefinition, ToolResult
from mcp_rollout.rollout.environment.task import Check, WorldCall
from mcp_rollout.rollout.trace.events import CheckEvent, ToolEvent
from mcp_rollout.rollout.types import Call, Shown

AnyCall = TypeVar("AnyCall", bound=WorldCall)


async def prepare(session: Session, calls: Iterable[WorldCall], *, where: str) -> list[ToolEvent]:
    """Make the calls that prepare a task's world, in order.

    Args:
        where: the task, as errors name it.

    Raises:
        HarnessError: a tool is unknown, refuses its arguments, or answers with an error or with what it may not return.
        GatewayError: the world broke.
    """
    events: list[ToolEvent] = []
    for number, call in enumerate(calls):
        at = f"{where}: setup.{number}"
        tool, call = _tool(session, call, at), _filled(session, call)
        began = time.time()
        result = await _sent(session, tool, call, at)
        if result.is_error or not await _is_met(session, tool, call, result):
            found = "an error" if result.is_error else f"what is not {call.expected!r}"
            problem = f"{at}: {call.name} answers with {found}: {result.text[:500]}"
            raise HarnessError(problem, server=tool.server, tool=tool.name, refused=True)
        events.append(_event(tool, call, result, began))
    return events


async def examine(session: Session, checks: Iterable[Check]) -> list[CheckEvent]:
    """Make the calls of a task's checks, in order, and find out which hold.

    A check does not hold in a process that the policy brought to its end.

    Raises:
        HarnessError: a tool is unknown, or refuses its arguments.
        GatewayError: the world broke.
    """
    events: list[CheckEvent] = []
    for number, given in enumerate(checks):
        tool, check = _tool(session, given, f"check.{number}"), _filled(session, given)
        began = time.time()
        try:
            result = await _sent(session, tool, check, f"check.{number}")
        except GatewayError as error:
            if error.fault is None:
                raise
            result = caused_by_policy(check.name, error, timeout_s=session.call_timeout_s(tool.server))
        holds = result.fault is None and result.is_error == check.error and await _is_met(session, tool, check, result)
        events.append(CheckEvent(call=_event(tool, check, result, began), holds=holds))
    return events


async def _is_met(session: Session, tool: ToolDefinition, call: WorldCall, result: ToolResult) -> bool:
    return await call.is_met_by(result.text, timeout_s=session.call_timeout_s(tool.server))


def _tool(session: Session, call: WorldCall, at: str) -> ToolDefinition:
    tool = session.tools.get(call.name) or session.later_tools.get(call.name)
    if tool is None:
        raise HarnessError(f"{at}: calls {call.name!r}, which is not a tool of its servers")
    return tool


def _filled(session: Session, call: AnyCall) -> AnyCall:
    return call.model_copy(update=session.filled(call.model_dump(include={"arguments", "returns"})))


async def _sent(session: Session, tool: ToolDefinition, call: WorldCall, at: str) -> ToolResult:
    prepared = session.prepared(tool, dict(call.arguments))
    if prepared.faults:
        raise HarnessError(f"{at}: {prepared.refusal(call.name)}", server=tool.server, tool=tool.name)
    return await session.send(tool, prepared.arguments)


def _event(tool: ToolDefinition, call: WorldCall, result: ToolResult, began: float) -> ToolEvent:
    made = Call(name=call.name, arguments=dict(call.arguments))
    event = ToolEvent.of(made, result, Shown(text=result.text), tool.server)
    event.began_at = began
    return event
