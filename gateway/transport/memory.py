"""A server in this process that exchanges lines: the path of stdio without the pipes, for `mcp.Client`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Protocol, runtime_checkable

from gateway.config.models import ServerConfig
from gateway.transport.line_calls import LineCalls, LineReader
from gateway.transport.lines import Oversize
from gateway.transport.link import Link
from gateway.transport.streams import Inbox, Outbox


@runtime_checkable
class LineExchange(Protocol):
    """What a `factory` may return in place of the SDK's server; `mcp_servers.kit.InProcess` is one."""

    def exchange_lines(
        self, receive: Callable[[bytes], None], /
    ) -> AbstractAsyncContextManager[Callable[[bytes], None]]:
        """Serve one client while the context is open.

        Args:
            receive: Takes each line of the server, one JSON-RPC message without a newline.

        Returns:
            On entry, what takes the lines of the client. Neither function may call the other one: a line is read in a
            later iteration of the event loop.
        """
        ...


class MemoryTransport:
    """Opens the exchange on entry and closes it on exit; the pair it yields is mcp's streams."""

    def __init__(self, name: str, server: LineExchange, config: ServerConfig, link: Link) -> None:
        self._link, self._most_bytes = link, config.max_message_bytes
        self._inbox = Inbox()
        self._outbox = Outbox(link, 4 * config.max_message_bytes)
        self._calls = LineCalls(self._outbox)
        self._reader = LineReader(name, link, self._calls, self._inbox, config.max_message_bytes)
        self._exchange = server.exchange_lines(self._receive)

    async def __aenter__(self) -> tuple[Inbox, Outbox]:
        self._outbox.pipe = _Lines(await self._exchange.__aenter__())
        self._link.channel = self._calls
        return self._inbox, self._outbox

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        self._inbox.close()
        self._calls.close()
        if self._outbox.pipe is not None:
            self._outbox.pipe.close()
        await self._exchange.__aexit__(exc_type, exc_val, exc_tb)

    def _receive(self, line: bytes) -> None:
        too_long = len(line) > self._most_bytes
        self._reader.read(Oversize.of(line) if too_long else line)


class _Lines(asyncio.WriteTransport):
    """The server's function as the pipe that `Outbox` writes to."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        super().__init__()
        self._take, self._closed = take, False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._take(bytes(data).rstrip(b"\n"))

    def get_write_buffer_size(self) -> int:
        return 0  # the server takes each line in the event loop's next iteration

    def is_closing(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True
