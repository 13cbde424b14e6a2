"""Waiting for a generation that can be told to stop and still hands over what it has."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

Result = TypeVar("Result")


class NoResult(Exception):
    """The work gave nothing, not even after it was told to stop."""


async def result_or_rest(
    work: Callable[[], Awaitable[Result]], stop: Callable[[], Awaitable[None]], *, timeout_s: float, grace_s: float
) -> Result:
    """What `work` returns.

    Where that takes longer than `timeout_s`, or the caller is cancelled meanwhile, `stop` is awaited and `work` has
    `grace_s` in all to return what it has. A cancellation by an anyio scope is then not raised from here: the caller
    gets the result, and the cancellation with its next wait. Any other cancellation is raised, as are those after
    which there is no result.

    Raises:
        NoResult: `work` took too long, and returned nothing after `stop` either.
    """
    results: list[Result] = []
    errors: list[Exception] = []
    done = anyio.Event()
    scope = anyio.CancelScope(shield=True)

    async def run() -> None:
        with scope:
            try:
                results.append(await work())
            except Exception as error:  # raised below as it is, not in a task group's
                errors.append(error)
        done.set()

    cancelled: BaseException | None = None
    async with anyio.create_task_group() as group:
        group.start_soon(run)
        try:
            with anyio.move_on_after(timeout_s):
                await done.wait()
        except anyio.get_cancelled_exc_class() as error:
            cancelled = error
        if not done.is_set():
            with anyio.move_on_after(grace_s, shield=True):
                try:
                    await stop()
                except Exception as error:  # raised below, unless there is a result
                    errors.append(error)
                await done.wait()
            scope.cancel()
    if cancelled is not None and not (results and anyio.current_effective_deadline() == -math.inf):
        raise cancelled
    if results:
        return results[0]
    if errors:
        raise errors[0]
    raise NoResult
