"""What an environment's author writes: functions over its world, each of them plain or `async`."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import Any, TypeVar, cast

from mcp_servers.kit.answers import Elicited, Expert, ExpertTurn, Reply, Score, Split, TaskItem
from mcp_servers.kit.messages import Message

W = TypeVar("W")
T = TypeVar("T")
Items = Iterable[T] | AsyncIterable[T]

Begin = Callable[[str, int], W | Awaitable[W]]
"""(task, seed) -> a world, the same in every process. Raises LookupError for a task that there is not."""

Start = Callable[[W], str | Awaitable[str]]
Answerer = Callable[[W, str], Reply | Awaitable[Reply]]
Elicitor = Callable[[W, str], Elicited | Awaitable[Elicited]]
Scorer = Callable[[W, list[Message]], Score | Awaitable[Score]]
Lister = Callable[[Split], Items[TaskItem] | Awaitable[Items[TaskItem]]]
Turns = Expert | Items[ExpertTurn]
Script = Callable[[W], Turns | Awaitable[Turns]]
Save = Callable[[W], dict[str, Any] | Awaitable[dict[str, Any]]]
Load = Callable[[dict[str, Any]], W | Awaitable[W]]
Notice = Callable[[W], Awaitable[None] | None]


async def awaited(value: T | Awaitable[T]) -> T:
    """What a function gave, whether it is plain or `async`."""
    return await value if inspect.isawaitable(value) else cast(T, value)


async def first(items: Items[T], limit: int) -> AsyncGenerator[T]:
    """The first `limit` of them; no further one is made."""
    if limit <= 0:
        return
    left = limit
    async with aclosing(each(items)) as made:
        async for item in made:
            yield item
            left -= 1
            if not left:
                return


async def each(items: Items[T]) -> AsyncGenerator[T]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
