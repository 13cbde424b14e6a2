"""A read stream with its notifications taken out: they go to whoever listens, and not by way of mcp.

mcp makes two tasks of each notification; a server that sends thousands within a call would delay its own answer.
"""

from __future__ import annotations

from contextvars import Context
from types import TracebackType
from typing import Any, Self

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification

from gateway.transport.link import FOR_MCP, Link

_AT_A_STRETCH = 100
"""Notifications taken before other tasks get their turn."""


class Tap:
    """mcp's read stream, minus notifications."""

    def __init__(self, inner: Any, link: Link) -> None:
        self._inner, self._link = inner, link
        self._taken = 0

    @property
    def last_context(self) -> Context | None:
        """The context that the last message was sent in; mcp's dispatcher asks for it."""
        return self._inner.last_context

    async def receive(self) -> SessionMessage | Exception:
        while True:
            item = await self._inner.receive()
            if not isinstance(item, SessionMessage) or not isinstance(item.message, JSONRPCNotification):
                return item
            notification = item.message
            if notification.method in FOR_MCP:
                return item
            self._link.hear(notification.method, notification.params, self._inner.last_context)
            self._taken += 1
            if self._taken % _AT_A_STRETCH == 0:
                await anyio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await self._inner.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool | None:
        return await self._inner.__aexit__(exc_type, exc_val, exc_tb)
