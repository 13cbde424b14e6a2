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

    def __len__(self) -> int:
        return len(self._answers)

    async def answer(self, seq: int, make: Callable[[], A | Awaitable[A]]) -> A:
        """Answer number `seq`: the one that was given before, or the one that `make` makes now.

        Raises:
            OutOfOrder: `seq` skips a number, or comes after the last answer.
            ToolError: the trajectory was released while the answer was being made.
        """
        if 1 <= seq <= len(self._answers):
            return self._answers[seq - 1]
        if self._answers and self._is_last(self._answers[-1]):
            raise OutOfOrder(f"{self._word} {seq}: the conversation was over after {self._word} {len(self._answers)}")
        if seq != len(self._answers) + 1:
            raise OutOfOrder(f"{self._word} {seq} is out of order: the next one is {len(self._answers) + 1}")
        if self._making is None:
            made = make()
            if not inspect.isawaitable(made):
                self._answers.append(cast(A, made))
                return self._answers[-1]
            self._making = asyncio.create_task(self._made(made))
            self._making.add_done_callback(_heard)
        making = self._making
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            if making.cancelled():
                raise ToolError(f"{self._word} {seq}: the trajectory was released meanwhile") from None
            raise

    def close(self) -> None:
        """Stop making what nobody will ask for any more."""
        if self._making is not None:
            self._making.cancel()

    async def _made(self, awaitable: Awaitable[A]) -> A:
        try:
            answer = await awaitable
        finally:
            self._making = None
        self._answers.append(answer)
        return answer


def _heard(task: asyncio.Task[A]) -> None:
    """The error goes to whoever waits; where nobody waits any more, it must not be reported as lost."""
    if not task.cancelled():
        task.exception()
