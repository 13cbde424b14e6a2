"""Bound generations in time; one that exceeds its bound or is cancelled returns its partial result."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import anyio

from mcp_rollout.rollout.errors import EngineError

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeouts:
    """Timeouts and retries of an engine, in seconds."""

    connect_timeout_s: float = 10.0
    generate_timeout_s: float = 1800.0
    """One generation, from the request to its last token."""
    abort_timeout_s: float = 10.0
    """For the partial tokens of an aborted generation."""
    attempts: int = 5
    """Most attempts of one request; it is retried where the connection is lost before any token arrived."""
    retry_pause_s: float = 0.5
    """Before the second attempt; doubled before each further one."""
    retry_after_most_s: float = 60.0
    """Longest pause that a server may ask for with the header Retry-After."""


async def result_or_partial(
    work: Callable[[], Awaitable[Result]], abort: Callable[[], Awaitable[object]], timeouts: Timeouts
) -> Result:
    """Await `work`; abort it after `generate_timeout_s`, or when the caller is cancelled.

    Once `abort` was called, `work` has `abort_timeout_s` in all to return its partial result. If it does, the
    cancellation of an anyio scope is not raised here: the caller gets the result, and is cancelled at its next await.
    Any other cancellation is raised, as is one without a result.

    Raises:
        EngineError: `work` took too long, and returned nothing after `abort` either.
    """
    results: list[Result] = []
    errors: list[Exception] = []
    # Waited for with a timeout. The group's own end, which needs no event, would be waited for without one.
    done = anyio.Event()
    # Shields `work` from the caller's cancellation, which must not cut off the partial result; cancelled by us alone.
    scope = anyio.CancelScope(shield=True)

    async def run() -> None:
        with scope:
            try:
                results.append(await work())
            except Exception as error:  # boundary of the task: raised below as it is, not in a group
                errors.append(error)
        done.set()

    cancelled: BaseException | None = None
    async with anyio.create_task_group() as group:
        group.start_soon(run)
        try:
            with anyio.move_on_after(timeouts.generate_timeout_s):
                await done.wait()
        except anyio.get_cancelled_exc_class() as error:
            cancelled = error
        if not done.is_set():
            # Shielded, since the caller may be cancelled already: the abort and the partial result get their time.
            with anyio.move_on_after(timeouts.abort_timeout_s, shield=True):
                try:
                    await abort()
                except Exception as error:  # boundary, as above; not raised where there is a result
                    errors.append(error)
                await done.wait()
            # For `work` that does not end even after the abort: without this the group would wait for it.
            scope.cancel()
    # A scope whose deadline is -inf cancels again at the next await; a native cancellation would be lost.
    if cancelled is not None and not (results and anyio.current_effective_deadline() == -math.inf):
        raise cancelled
    if results:
        return results[0]
    if errors:
        raise errors[0]
    raise EngineError(f"no completion within generate_timeout_s={timeouts.generate_timeout_s}")
