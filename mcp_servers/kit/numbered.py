"""Answers that are counted: each is made once, however often and by however many requests it is asked for."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar, cast

from mcp.server.mcpserver.exceptions import ToolError

A = TypeVar("A")


class OutOfOrder(ToolError):
    """The number is neither the next one nor one that was answered; the text says which was expected."""


class Numbered(Generic[A]):
    """The answers 1, 2, 3, ... of one trajectory.

    An answer that takes time is made by a task of its own, so that a request which is dropped does not take the answer
    with it: the same number, sent again, waits for the same task. What fails has not been answered, and may be asked
    for again.

    Args:
        word: What an answer is called in errors.
        is_last: Whether nothing can follow an answer.
    """

    def __init__(self, word: str, *, is_last: Callable[[A], bool] = lambda _: False) -> None:
        self._word, self._is_last = word, is_last
        self._answers: list[A] = []
        self._making: asyncio.Task[A] | None = None
        self._over = False

    def __len__(self) -> int:
        return len(self._answers)

    async def answer(self, seq: int, make: Callable[[], A | Awaitable[A]]) -> A:
        """Answer number `seq`: the one that was given before, or the one that `make` makes now.

        Raises:
            OutOfOrder: `seq` skips a number, or comes after the last answer.
            ToolError: the trajectory was released or restored while the answer was being made.
        """
        if 1 <= seq <= len(self._answers):
            return self._answers[seq - 1]
        if self._over:
            raise OutOfOrder(f"{self._word} {seq}: the conversation was over after {self._word} {len(self._answers)}")
        if seq != len(self._answers) + 1:
            raise OutOfOrder(f"{self._word} {seq} is out of order: the next one is {len(self._answers) + 1}")
        if self._making is None:
            made = make()
            if not inspect.isawaitable(made):
                return self._given(cast(A, made))
            self._making = asyncio.create_task(self._made(made))
            self._making.add_done_callback(_heard)
        making = self._making
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            if making.cancelled():
                raise ToolError(f"{self._word} {seq}: the trajectory was released or restored meanwhile") from None
            raise

    def reopen(self) -> None:
        """Go on counting where the conversation was over. An answer that is being made is given up, and not counted."""
        self.close()
        self._making, self._over = None, False

    def close(self) -> None:
        """Stop making what nobody will ask for any more."""
        if self._making is not None:
            self._making.cancel()

    async def _made(self, awaitable: Awaitable[A]) -> A:
        made_by = asyncio.current_task()
        try:
            answer = await awaitable
        finally:
            current = self._making is made_by
            self._making = None if current else self._making
        if not current:  # given up, and whoever made it took no notice
            raise asyncio.CancelledError
        return self._given(answer)

    def _given(self, answer: A) -> A:
        self._answers.append(answer)
        self._over = self._is_last(answer)
        return answer


def _heard(task: asyncio.Task[A]) -> None:
    """The error goes to whoever waits; where nobody waits any more, it must not be reported as lost."""
    if not task.cancelled():
        task.exception()
