"""The least that a client can do: write the bytes of a request and read those of its answer.

In the 2026-07-28 protocol. Nothing is validated, redacted, bounded or recorded: a floor for what a client costs, and a
client that costs next to nothing where a server is measured.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

VERSION = "2026-07-28"
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
CONNECTS = 256
"""Connections that are opened at a time."""
_IDS = count(1)
Ask = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""Sends (method, params); returns the whole answer."""


def _message(method: str, params: dict[str, Any]) -> dict[str, Any]:
    params = {**params, "_meta": {**ENVELOPE, **params.get("_meta", {})}}
    return {"jsonrpc": "2.0", "id": next(_IDS), "method": method, "params": params}


@asynccontextmanager
async def over_stdio(argv: Sequence[str]) -> AsyncGenerator[tuple[int, Ask]]:
    """The process id of a server, and what asks it."""
    # With the reader's own limit of 64 KiB, a longer line would end it.
    process = await asyncio.create_subprocess_exec(*argv, stdin=-1, stdout=-1, limit=1 << 24)
    assert process.stdin is not None and process.stdout is not None
    stdin, stdout = process.stdin, process.stdout
    waiting: dict[int, asyncio.Future[Any]] = {}

    async def read() -> None:
        while line := await stdout.readline():
            answer = json.loads(line)
            waiting.pop(answer["id"]).set_result(answer)

    async def ask(method: str, params: dict[str, Any]) -> Any:
        sent = _message(method, params)
        waiting[sent["id"]] = asyncio.get_running_loop().create_future()
        stdin.write(json.dumps(sent).encode() + b"\n")
        return await waiting[sent["id"]]

    reading = asyncio.create_task(read())
    try:
        yield process.pid, ask
    finally:
        # In this order: the server ends with its input, and the reader with the server's output.
        stdin.close()
        await process.wait()
        await reading


class _Connection(asyncio.Protocol):
    """A kept connection with one request at a time, whose answer has a `Content-Length`."""

    answer: asyncio.Future[Any]
    transport: Any

    def connection_made(self, transport: Any) -> None:
        self.transport, self._data = transport, b""

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        if end and len(body) >= int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]):
            self._data = b""
            self.answer.set_result(json.loads(body))


@asynccontextmanager
async def over_http(port: int) -> AsyncGenerator[Ask]:
    """What asks the server that listens on `port` of this machine, under /mcp."""
    loop, every, free, gate = asyncio.get_running_loop(), list[Any](), list[_Connection](), asyncio.Semaphore(CONNECTS)

    async def ask(method: str, params: dict[str, Any]) -> Any:
        if not free:
            async with gate:
                transport, opened = await loop.create_connection(_Connection, "127.0.0.1", port)
                every.append(transport)
                free.append(opened)
        # Without an `await` since the connection was put there, so that no other caller takes it.
        connection = free.pop()
        connection.answer = loop.create_future()
        body = json.dumps(_message(method, params))
        name = f"mcp-name: {params['name']}\r\n" if "name" in params else ""
        head = (
            f"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\naccept: application/json, text/event-stream\r\n"
            f"content-type: application/json\r\nmcp-protocol-version: {VERSION}\r\nmcp-method: {method}\r\n"
            f"{name}content-length: {len(body)}\r\n\r\n"
        )
        connection.transport.write((head + body).encode())
        answer = await connection.answer
        free.append(connection)
        return answer

    try:
        yield ask
    finally:
        for transport in every:
            transport.close()
