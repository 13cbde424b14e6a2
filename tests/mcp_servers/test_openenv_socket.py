"""Our end of a WebSocket, against a server of bare frames: half-open connections, pings, fragments, bounds."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from mcp_servers.kit import ToolError
from mcp_servers.openenv.session import Address, CapacityReached
from mcp_servers.openenv.websocket import WebSocket

pytestmark = pytest.mark.anyio
Play = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def frame(opcode: int, payload: bytes, *, final: bool = True) -> bytes:
    size = len(payload)
    length = (
        bytes([size]) if size < 126 else b"\x7e" + size.to_bytes(2) if size < 1 << 16 else b"\x7f" + size.to_bytes(8)
    )
    return bytes([0x80 * final | opcode]) + length + payload


async def read(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readexactly(2)
    size = head[1] & 0x7F
    if size >= 126:
        size = int.from_bytes(await reader.readexactly(2 if size == 126 else 8))
    mask, payload = await reader.readexactly(4), await reader.readexactly(size)
    return head[0] & 0xF, bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))


@asynccontextmanager
async def served(play: Play) -> AsyncIterator[str]:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        key = next(line[19:] for line in head.split("\r\n") if line.startswith("Sec-WebSocket-Key: "))
        accepted = base64.b64encode(hashlib.sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest())
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: " + accepted + b"\r\n\r\n")
        try:
            await play(reader, writer)
        finally:
            writer.close()

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def connected(url: str, *, ping_s: float = 20, most_bytes: int = 1 << 20) -> WebSocket:
    return await WebSocket.connect(
        url.replace("http", "ws") + "/ws", timeout_s=20, ping_s=ping_s, most_bytes=most_bytes
    )


async def test_messages_of_every_length_and_in_parts_arrive_whole() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (got := await read(reader))[0] == 1:
            half = len(got[1]) // 2
            writer.write(frame(1, got[1][:half], final=False) + frame(9, b"?") + frame(0, got[1][half:]))
            assert await read(reader) == (10, b"?")

    async with served(echo) as url:
        socket = await connected(url)
        for size in (0, 1, 125, 126, 65_535, 65_536, 300_000):
            await socket.send("é" * (size // 2) + "x" * (size % 2))
            assert await socket.receive() == "é" * (size // 2) + "x" * (size % 2)
        await socket.close()


async def test_a_half_open_connection_is_noticed_and_a_slow_server_is_waited_for() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(3):  # whoever answers pings may take as long as it likes
            assert await read(reader) == (9, b"")
            writer.write(frame(10, b""))
        writer.write(frame(1, b"at last"))
        await reader.read()

    async with served(silent) as url:
        socket = await connected(url, ping_s=0.05)
        with pytest.raises(ConnectionError, match=r"nothing was heard for 0\.1 s, a ping was not answered"):
            await socket.receive()
        with pytest.raises(ConnectionError, match="nothing was heard"):
            await socket.send("more")
        await socket.close()
    async with served(slow) as url:
        socket = await connected(url, ping_s=0.5)
        assert await socket.receive() == "at last"
        await socket.close()


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        (frame(1, b"x" * 2000), "a frame of 2000 bytes"),
        (
            b"".join(frame(1 * (not at), b"x" * 600, final=False) for at in range(2)),
            "a message of more than 1000 bytes",
        ),
        (b"\x81\x7f" + (1 << 62).to_bytes(8), "a frame of"),
        (frame(8, b"\x03\xe8enough"), "closed the connection: enough"),
        (b"", "closed the connection"),
    ],
)
async def test_what_is_too_long_or_ends_the_connection_is_named(sent: bytes, problem: str) -> None:
    async def say(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        await writer.drain()

    async with served(say) as url:
        socket = await connected(url, most_bytes=1000)
        with pytest.raises(ConnectionError, match=problem):
            await socket.receive()
        await socket.close()


async def test_what_is_no_websocket_is_refused() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionError, match="404 Not Found"):
            await connected(f"http://127.0.0.1:{port}")
    with pytest.raises(ConnectionError, match=r"ws://127\.0\.0\.1"):
        await connected(f"http://127.0.0.1:{port}")


async def test_an_answer_that_comes_too_late_is_never_taken_for_the_next_one() -> None:
    answers = {"reset": {"type": "error", "data": {"code": "EXECUTION_ERROR", "message": "no"}}}

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (got := await read(reader))[0] == 1:
            kind = json.loads(got[1])["type"]
            if kind in answers:
                writer.write(frame(1, json.dumps(answers[kind]).encode()))

    async with served(server) as url:
        session = await Address(url=url, timeout_s=0.2, ping_s=20).open()
        with pytest.raises(ToolError, match=r"^no$"):
            await session.ask("reset", {})
        assert not session.lost
        for kind in ("step", "reset"):  # the first one is not answered in time
            with pytest.raises(ToolError, match=r"the session is lost: no answer within 0\.2 s"):
                await session.ask(kind, {})
        await session.socket.close()


async def test_a_full_server_is_named_with_its_capacity() -> None:
    full = {"code": "CAPACITY_REACHED", "message": "full", "active_sessions": 3, "max_sessions": 3}

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(1, json.dumps({"type": "error", "data": full}).encode()))
        await reader.read()

    async with served(server) as url:
        session = await Address(url=url, timeout_s=20, ping_s=20).open()
        with pytest.raises(CapacityReached, match="holds 3 sessions at a time") as caught:
            await session.ask("reset", {"seed": 1})
        assert caught.value.most == 3
        await session.socket.close()
