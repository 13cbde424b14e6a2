"""Run an agent within its trajectory's time, and map every way it can end to a defined outcome."""

from __future__ import annotations

import asyncio

import anyio
import structlog

from mcp_rollout.gateway.errors import innermost
from mcp_rollout.rollout.errors import AgentError, AgentTimeout, EngineError
from mcp_rollout.rollout.loop.agent import Agent
from mcp_rollout.rollout.loop.limits import cancellations
from mcp_rollout.rollout.loop.thinking import CHANGED
from mcp_rollout.rollout.loop.turns import TrajectoryOver, Turns
from mcp_rollout.rollout.trace.record import StopReason, Trace

log = structlog.get_logger(__name__)


async def supervise(agent: Agent, turns: Turns, trace: Trace) -> None:
    """Let the agent play, in a task of its own, until it returns, the trajectory ends or its time is over.

    The clock cancels nothing outside of this: the session stays open, so that a trajectory that ran out of time can
    still be scored. A policy may shield its generation; then that ends first. At the end of its time the agent is
    cancelled, after another end once `limits.agent_close_timeout_s` have passed, and in either case it has so many
    seconds to end. One that catches its cancellation goes on beside other trajectories, without a turn or a session.

    Raises:
        GatewayError, RolloutError, Exception: what broke in the library, also where the agent caught it.
        EngineError: the policy changed the context that it was given.
        AgentError: the agent raised, took no turn, wrote into the trace, or did not end.
    """
    close_s = turns.limits.agent_close_timeout_s
    playing = asyncio.create_task(_play(agent, turns))
    playing.add_done_callback(lambda _: turns.over.set())
    try:
        with turns.clock.move_on_after(turns.limits.wall_clock_s) as clock:
            await turns.over.wait()
        if not clock.cancel_called:
            await asyncio.wait({playing}, timeout=close_s)
    finally:  # also where this is cancelled from outside
        try:
            if not playing.done():
                turns.interrupt()
                with anyio.CancelScope(shield=True):
                    async with turns.lock:  # once the method has ended, with what it shields
                        playing.cancel()
                    await asyncio.wait({playing}, timeout=close_s)
        finally:
            turns.close()
    if turns.failure is not None:
        raise turns.failure
    if not playing.done():
        raise AgentTimeout(f"the agent went on for {close_s:g} s after its trajectory had ended")
    if not playing.cancelled() and (error := playing.result()) is not None:
        raise error
    _check(trace)
    # An engine that is cancelled while it generates may return its partial completion instead of raising
    # (`finish_reason` ABORT).
    if clock.cancel_called and trace.stop_reason in (None, StopReason.ABORTED):
        trace.stop_reason = StopReason.TIME_LIMIT
    if trace.stop_reason is None:
        if not trace.turns:
            raise AgentError("the agent took no turn")
        trace.stop_reason = turns.ending


async def _play(agent: Agent, turns: Turns) -> AgentError | None:
    """Await the agent, and return what its exceptions mean."""
    try:
        await turns.begin()
        await agent.play(turns)
    except TrajectoryOver:
        return None
    except (Exception, BaseExceptionGroup, SystemExit, asyncio.CancelledError) as error:
        # The agent's boundary. A SystemExit would end the worker.
        if isinstance(error, asyncio.CancelledError) and cancellations():
            raise
        if turns.failure is not None:  # which the agent let pass
            return None
        # An exception group comes from a task group of the agent's own.
        rest = error.split(TrajectoryOver)[1] if isinstance(error, BaseExceptionGroup) else error
        return None if rest is None else _agent_error(innermost(rest))
    # In a task of the agent's own, whose effects would be missing in the trace.
    return AgentError("the agent returned while a method of its turns was running") if turns.lock.locked() else None


def _agent_error(error: BaseException) -> AgentError:
    if isinstance(error, AgentError):
        return error
    log.warning("agent failed", exc_info=error)
    return AgentError(f"the agent raised {type(error).__name__}: {error}")


def _check(trace: Trace) -> None:
    """Raises EngineError or AgentError where the policy's context, ids, mask and logprobs do not fit together."""
    fits = (
        len(each.response_ids) == len(each.loss_mask) == len(each.logprobs)
        and sum(each.loss_mask) <= each.sampled_tokens
        for each in (*trace.earlier, trace)
    )
    if not all(fits):
        raise AgentError("the agent wrote into the trace: its ids, mask and logprobs do not fit together")
    if trace.context != trace.prompt_ids + trace.response_ids:
        raise EngineError(CHANGED)
