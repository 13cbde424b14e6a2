"""Messages of ours that nobody waits for: cancellations, and answers to what servers ask.

mcp's HTTP transport sends nothing else until such a message has been answered, so that one that gets lost would hold up
every call on the connection. Here they are sent beside the calls.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Self

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification, JSONRPCRequest

IS_BACKGROUND: ContextVar[bool] = ContextVar("is_aside", default=False)
"""Whether the message being sent in this context is one that nobody waits for."""


class MarkedWriteStream:
    """mcp's write stream, which marks the context of each message before it is sent."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def send(self, item: SessionMessage, /) -> None:
        outer = IS_BACKGROUND.set(_nobody_waits_for(item))
        try:
            await self._inner.send(item)
        finally:
            IS_BACKGROUND.reset(outer)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool | None:
        return await self._inner.__aexit__(exc_type, exc_val, exc_tb)


def _nobody_waits_for(item: SessionMessage) -> bool:
    message = item.message
    if isinstance(message, JSONRPCNotification):
        return message.method != "notifications/initialized"  # a server may turn away requests that overtake it
    return not isinstance(message, JSONRPCRequest)


class BackgroundPosts:
    """Runs what is begun with `start` until it is done, until `most_s` are over, or until the block is left."""

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._open = False

    def start(self, send: Callable[[], Awaitable[None]]) -> None:
        """Returns at once. `send` may raise nothing."""
        if self._open:
            self._tasks.start_soon(self._bounded, send)

    async def _bounded(self, send: Callable[[], Awaitable[None]]) -> None:
        with anyio.move_on_after(self._most_s):
            await send()

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._open = True
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool | None:
        self._open = False
        self._tasks.cancel_scope.cancel()
        return await self._tasks.__aexit__(exc_type, exc_val, exc_tb)
