"""A web server that answers every request with the same page, for tools that fetch."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.abc


@asynccontextmanager
async def serving(page: str) -> AsyncIterator[str]:
    """The page's address, on the loopback interface."""
    body = page.encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"

    async def answer(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            request = await stream.receive()
            if request.startswith(b"GET /robots.txt"):
                await stream.send(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            else:
                await stream.send(head.encode() + body)

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        yield f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}/"
        tasks.cancel_scope.cancel()
