"""Run an agent within its trajectory's time, and map every way it can end to a defined outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import structlog

from gateway.errors import innermost
from rollout.errors import AgentError, AgentTimeout
from rollout.loop.agent import Agent
from rollout.loop.turns import TrajectoryOver, Turns
from rollout.trace.record import StopReason, Trace

log = structlog.get_logger(__name__)


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
    # `Task.cancelling` counts requests (Python 3.11), so a cancellation that the agent swallows is still noticed below.
    cancellations = task.cancelling()
    try:
        with turns.clock.move_on_after(turns.limits.wall_clock_s) as clock:
            await turns.begin()
            await _play(_Played(agent.play(turns), turns, task, clock))
        if turns.failure is not None:
            raise turns.failure
        turns.check()
    finally:
        turns.close()
        # A cancellation from outside that the agent caught must not be lost.
        await anyio.lowlevel.checkpoint_if_cancelled()
        if task.cancelling() > cancellations:
            raise asyncio.CancelledError
    # An engine that is cancelled while it generates may return its partial completion instead of raising
    # (`finish_reason` ABORT); then the scope catches nothing, though its deadline has passed.
    if clock.cancel_called and trace.stop_reason in (None, StopReason.ABORTED):
        trace.stop_reason = StopReason.TIME_LIMIT
    if trace.stop_reason is None:
        if not trace.turns:
            raise AgentError("the agent took no turn")
        trace.stop_reason = turns.ending


async def _play(played: _Played) -> None:
    """Await the agent, and raise what its exceptions mean."""
    try:
        await played
        if played.turns.is_busy:  # in a task of the agent's own, whose effects would be missing in the trace
            raise AgentError("the agent returned while a method of its turns was running")
    except TrajectoryOver:
        pass
    except (Exception, BaseExceptionGroup, SystemExit, asyncio.CancelledError) as error:
        # The agent's boundary. A SystemExit would end the worker, and a CancelledError of the agent's own the caller.
        if played.turns.failure is not None:
            raise played.turns.failure from None
        if isinstance(error, asyncio.CancelledError) and played.is_cancelled:
            raise
        # An exception group comes from a task group of the agent's own.
        rest = error.split(TrajectoryOver)[1] if isinstance(error, BaseExceptionGroup) else error
        if rest is not None:
            raise _agent_error(innermost(rest)) from error
    finally:
        played.stop_timer()


def _agent_error(error: BaseException) -> AgentError:
    if isinstance(error, AgentError):
        return error
    log.warning("agent failed", exc_info=error)
    return AgentError(f"the agent raised {type(error).__name__}: {error}")


class _Played:
    """Awaits an agent's coroutine as `await` does, and stops it where it does not end with its trajectory.

    Cancelling is not enough: a coroutine can catch the cancellation, or wait within its own shield.
    """

    def __init__(
        self, coroutine: Coroutine[Any, Any, None], turns: Turns, task: asyncio.Task[Any], time: anyio.CancelScope
    ) -> None:
        self.turns = turns
        self._coroutine: Coroutine[Any, Any, None] | None = coroutine
        self._task, self._time = task, time
        self._cancellations = task.cancelling()
        self._timer: asyncio.TimerHandle | None = None
        self._is_ending = self._is_stopped = False

    @property
    def is_cancelled(self) -> bool:
        """Whether the task has been cancelled, by the trajectory's clock, from outside, or by the agent's own scope."""
        return self._task.cancelling() > self._cancellations

    def stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def __await__(self) -> Generator[Any, Any, None]:
        self._set_timer(self._seconds_left)
        assert self._coroutine is not None
        resume: Callable[[], Any] | None = partial(self._coroutine.send, None)
        # One step of the coroutine at a time, as a task would do it: `resume` continues it with the value or the
        # exception of what it awaited.
        while True:
            try:
                awaited = resume()
            except StopIteration:
                return
            # Looked at after each step of the agent: the trajectory may end in any method of `turns`, and an agent's
            # own cancel scope may also take its cancellation back.
            if self._is_ending != (self.turns.is_over or self.is_cancelled):
                self._is_ending = not self._is_ending
                self._set_timer(self._seconds_left)
            try:
                resume = partial(self._coroutine.send, (yield awaited))
            except BaseException as error:  # boundary: what the await raised is raised in the agent
                if self._is_stopped:
                    # `_stop` cancelled the task only to get here; the task itself goes on.
                    self._task.uncancel()
                    resume = None
                    self._drop()
                    waited = self.turns.limits.agent_close_timeout_s
                    raise AgentTimeout(f"the agent went on for {waited:g} s after its trajectory had ended") from None
                resume = partial(self._coroutine.throw, error)

    @property
    def _seconds_left(self) -> float:
        """Until the trajectory has ended; while its clock is stopped, all of the time that a trajectory has."""
        left = self._time.deadline - asyncio.get_running_loop().time()
        return 0.0 if self._is_ending else min(max(0.0, left), self.turns.limits.wall_clock_s)

    def _set_timer(self, seconds: float) -> None:
        """Stop the agent `agent_close_timeout_s` after the trajectory has ended, which is in so many seconds."""
        self.stop_timer()
        after = seconds + self.turns.limits.agent_close_timeout_s
        self._timer = asyncio.get_running_loop().call_later(after, self._stop)

    def _stop(self) -> None:
        if self.turns.is_busy:  # a generation of the policy can outlast the trajectory's time
            self._set_timer(0.0)
            return
        if self._seconds_left > 0:  # the clock was stopped meanwhile
            self._set_timer(self._seconds_left)
            return
        self._is_stopped = True
        # A cancel scope's cancellation does not reach a wait that the agent has shielded; the task's own does.
        self._task.cancel()

    def _drop(self) -> None:
        """Close the coroutine. One that catches GeneratorExit as well is destroyed where it waits.

        This drops the last reference to it, so that it is destroyed here: what it runs then may need the event loop.
        """
        coroutine, self._coroutine = self._coroutine, None
        assert coroutine is not None
        try:
            coroutine.close()
        except BaseException as error:  # boundary: the agent's own code, which runs once more while it is closed
            log.warning("agent could not be closed", problem=f"{type(error).__name__}: {error}")
