"""Numbered answers: each is computed once, however many requests ask for it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar, cast

from mcp.server.mcpserver.exceptions import ToolError

A = TypeVar("A")


class OutOfOrder(ToolError):
    """The number is neither the next one nor an answered one; the message names the expected number."""


class Numbered(Generic[A]):
    """The answers 1, 2, 3, ... of one trajectory.

    A task owned by this object makes an asynchronous answer, so that a cancelled request does not cancel the answer:
    the next request with the same number awaits the same task. An answer that failed was not given and can be asked
    for again.

    Args:
        word: What an answer is called in error messages.
        is_last: Whether no answer can follow this one.
    """

    def __init__(self, word: str, *, is_last: Callable[[A], bool] = lambda _: False) -> None:
        self._word, self._is_last = word, is_last
        self._answers: list[A] = []
        self._making: asyncio.Task[A] | None = None
        self._over = False

    def __len__(self) -> int:
        return len(self._answers)

    async def answer(self, seq: int, make: Callable[[], A | Awaitable[A]]) -> A:
        """Returns answer number `seq`: the recorded one, or a new one from `make`.

        Raises:
            OutOfOrder: `seq` skips a number, or follows the last answer.
            ToolError: The trajectory was released or restored while the answer was being made.
        """
        if 1 <= seq <= len(self._answers):
            return self._answers[seq - 1]
        if self._over:
            raise OutOfOrder(f"{self._word} {seq}: the conversation was over after {self._word} {len(self._answers)}")
        if seq != len(self._answers) + 1:
            raise OutOfOrder(f"{self._word} {seq} is out of order: the next one is {len(self._answers) + 1}")
        # No `await` since the numbers were compared: two requests with one number share one answer.
        if self._making is None:
            made = make()
            if not inspect.isawaitable(made):
                return self._record(cast(A, made))
            self._making = asyncio.create_task(self._finish(made))
            self._making.add_done_callback(_retrieve_error)
        making = self._making
        try:
            # Shielded: a cancelled request leaves the task running for the request that repeats it.
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            if making.cancelled():  # by `close` or `reopen`, not by a cancellation of this request
                raise ToolError(f"{self._word} {seq}: the trajectory was released or restored meanwhile") from None
            raise

    def reopen(self) -> None:
        """Allows further answers after the last one. An answer in progress is cancelled and not counted."""
        self.close()
        self._making, self._over = None, False

    def close(self) -> None:
        """Cancels the answer in progress."""
        if self._making is not None:
            self._making.cancel()

    async def _finish(self, awaitable: Awaitable[A]) -> A:
        this_task = asyncio.current_task()
        try:
            answer = await awaitable
        finally:
            current = self._making is this_task
            self._making = None if current else self._making
        if not current:  # `reopen` gave the answer up, and the awaitable suppressed the cancellation
            raise asyncio.CancelledError
        return self._record(answer)

    def _record(self, answer: A) -> A:
        self._answers.append(answer)
        self._over = self._is_last(answer)
        return answer


def _retrieve_error(task: asyncio.Task[A]) -> None:
    """Marks the error as retrieved: waiting requests receive it, and without one asyncio must not log it as lost."""
    if not task.cancelled():
        task.exception()
