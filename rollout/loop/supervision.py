"""Runs an agent within its trajectory's time, and turns whatever it does into a defined outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from functools import partial
from typing import Any, cast

import anyio
import anyio.lowlevel
import structlog

from rollout.errors import AgentError, AgentTimeout
from rollout.loop.agent import Agent
from rollout.loop.turns import TrajectoryOver, Turns
from rollout.trace.record import StopReason, Trace

log = structlog.get_logger(__name__)

_BUSY_S = 1.0
"""Until the next look at an agent that is to be stopped and waits within the library."""


async def supervise(agent: Agent, turns: Turns, trace: Trace) -> None:
    """Let the agent play until it returns, the trajectory ends or its time is over.

    The clock cancels nothing outside of this: the session stays open, so that a trajectory that ran out of time can
    still be scored. A policy may shield its generation; then that ends first. Once the trajectory has ended, the agent
    has `limits.agent_close_timeout_s` to end as well.

    Raises:
        GatewayError, RolloutError, Exception: what broke in the library, also where the agent caught it.
        AgentError: the agent raised, took no turn, edited the trace, or did not end.
    """
    task = asyncio.current_task()
    assert task is not None
    cancelled = task.cancelling()
    try:
        with anyio.move_on_after(turns.limits.wall_clock_s) as clock:
            await turns.begin()
            await _play(agent, turns, task, cancelled, seconds=clock.deadline - anyio.current_time())
        # A cancellation from outside that the agent caught must not be lost.
        await anyio.lowlevel.checkpoint_if_cancelled()
        if task.cancelling() > cancelled:
            raise asyncio.CancelledError
        if turns.failure is not None:
            raise turns.failure
        turns.check()
    finally:
        turns.close()
    # An engine that is cancelled while it generates may return its partial completion instead of raising
    # (`finish_reason` ABORT); then the scope catches nothing, though its deadline has passed.
    if clock.cancel_called and trace.stop_reason in (None, StopReason.ABORTED):
        trace.stop_reason = StopReason.TIME_LIMIT
    if trace.stop_reason is None:
        if not trace.turns:
            raise AgentError("the agent took no turn")
        trace.stop_reason = turns.ending


async def _play(agent: Agent, turns: Turns, task: asyncio.Task[Any], cancelled: int, *, seconds: float) -> None:
    """Let the agent play, and raise what its exceptions mean."""
    played = _Played(agent.play(turns), turns, task)
    played.stop_in(seconds + turns.limits.agent_close_timeout_s)
    try:
        await played
    except TrajectoryOver:
        pass
    except (Exception, BaseExceptionGroup, SystemExit, asyncio.CancelledError) as error:
        # The agent's boundary. A SystemExit would end the worker, and a CancelledError of the agent's own the caller.
        _judge(error, turns, is_cancelled=task.cancelling() > cancelled)
    finally:
        played.stop_timer()


def _judge(error: BaseException, turns: Turns, *, is_cancelled: bool) -> None:
    """Raise what the agent's exception means; return where it is the trajectory's end."""
    if turns.failure is not None or isinstance(error, AgentError):
        raise turns.failure or error
    if isinstance(error, asyncio.CancelledError) and is_cancelled:
        raise error
    rest: BaseException | None = error
    if isinstance(error, BaseExceptionGroup):  # of a task group of the agent's own
        rest = cast("BaseExceptionGroup[BaseException]", error).split(TrajectoryOver)[1]
    if rest is not None:
        log.warning("agent failed", exc_info=error)
        raise AgentError(f"the agent raised {type(error).__name__}: {error}") from error


class _Played:
    """Awaits an agent's coroutine as `await` does, and can end it where it does not end when it is cancelled."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], turns: Turns, task: asyncio.Task[Any]) -> None:
        self._coroutine, self._turns, self._task = coroutine, turns, task
        self._timer: asyncio.TimerHandle | None = None
        self._is_ending = self._is_stopped = False

    def stop_in(self, seconds: float) -> None:
        """End the coroutine in so many seconds, instead of when it was to be ended before."""
        self.stop_timer()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._stop)

    def stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _stop(self) -> None:
        if self._turns.is_busy:  # a generation of the policy can outlast the trajectory's time
            self.stop_in(_BUSY_S)
            return
        self._is_stopped = True
        # A cancel scope's cancellation does not reach a wait that the agent has shielded; the task's own does.
        self._task.cancel()

    def __await__(self) -> Generator[Any, Any, None]:
        resume = partial(self._coroutine.send, None)
        while True:
            try:
                awaited = resume()
            except StopIteration:
                return
            if self._turns.is_over and not self._is_ending:
                self._is_ending = True
                self.stop_in(self._turns.limits.agent_close_timeout_s)
            try:
                resume = partial(self._coroutine.send, (yield awaited))
            except BaseException as error:
                if self._is_stopped:
                    self._task.uncancel()
                    self._close()
                    waited = self._turns.limits.agent_close_timeout_s
                    raise AgentTimeout(f"the agent went on for {waited:g} s after its trajectory had ended") from None
                resume = partial(self._coroutine.throw, error)

    def _close(self) -> None:
        try:
            self._coroutine.close()
        except BaseException as error:
            # The agent catches GeneratorExit as well; its coroutine is dropped where it is.
            log.warning("agent could not be closed", exc_info=error)
