"""Serve a page on the loopback interface, for tools that take an address."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import SocketAttribute, SocketStream

_BODY = b"<html><head><title>Page</title></head><body><article><h1>Page</h1><p>One page.</p></article></body></html>"
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (
    len(_BODY),
    _BODY,
)
_REQUEST_TIMEOUT_S = 5.0


@asynccontextmanager
async def loopback_page() -> AsyncGenerator[int]:
    """Serve the page at every path, and yield the port."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")

    async def answer(stream: SocketStream) -> None:
        async with stream:
            with anyio.move_on_after(_REQUEST_TIMEOUT_S):
                try:
                    await stream.receive()
                    await stream.send(_ANSWER)
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    pass

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        yield int(listener.extra(SocketAttribute.local_port))
        tasks.cancel_scope.cancel()
