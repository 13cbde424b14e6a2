"""Sessions of an OpenEnv server that stalls, breaks off or answers too much, as bare frames."""

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
        asked = (await reader.readuntil(b"\r\n\r\n")).decode()
        key = next(line[19:] for line in asked.split("\r\n") if line.startswith("Sec-WebSocket-Key: "))
        accepted = base64.b64encode(hashlib.sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest())
        head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        writer.write(head + b"Sec-WebSocket-Accept: " + accepted + b"\r\n\r\n")
        try:
            await play(reader, writer)
        finally:
            writer.close()

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_half_open_connection_is_noticed_and_a_slow_server_is_waited_for() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await read(reader))[0] == 1
        for _ in range(3):  # whoever answers pings may take as long as it likes
            opcode, payload = await read(reader)
            assert opcode == 9
            writer.write(frame(10, payload))
        writer.write(frame(1, b'{"data": {"reward": 1}}'))
        await reader.read()

    async with served(silent) as url:
        session = await Address(url=url, timeout_s=60, ping_s=0.05).open()
        for _ in range(2):
            with pytest.raises(ToolError, match=r"the session is lost: .*keepalive ping timeout"):
                await session.ask("state")
        await session.socket.close()
    async with served(slow) as url:
        session = await Address(url=url, timeout_s=60, ping_s=0.5).open()
        assert await session.ask("step", {}) == {"reward": 1}
        await session.socket.close()


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        (b"\x81\x7f" + (1 << 24 | 1).to_bytes(8), "too big"),
        (frame(1, b"no JSON"), "Expecting value"),
        (frame(8, b"\x03\xe8enough"), "enough"),
        (b"", "no close frame"),
    ],
    ids=["too long", "no JSON", "closed", "cut"],
)
async def test_what_is_too_long_or_ends_the_connection_is_named(sent: bytes, problem: str) -> None:
    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read(reader)
        writer.write(sent)
        await writer.drain()

    async with served(say) as url:
        session = await Address(url=url, timeout_s=60, ping_s=20).open()
        with pytest.raises(ToolError, match=f"the session is lost: .*{problem}"):
            await session.ask("state")
        await session.socket.close()


async def test_what_is_no_websocket_is_refused() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        address = Address(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", timeout_s=20, ping_s=20)
        with pytest.raises(ToolError, match=r"no OpenEnv server: .*404"):
            await address.open()
    with pytest.raises(ToolError, match=r"no OpenEnv server: ws://127\.0\.0\.1"):
        await address.open()


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
        writer.write(frame(1, json.dumps({"type": "error", "data": full}).encode()) + frame(8, b"\x03\xe8"))
        await reader.read()

    async with served(server) as url:
        session = await Address(url=url, timeout_s=20, ping_s=20).open()
        await session.socket.wait_closed()  # as its server does before anything is asked
        with pytest.raises(CapacityReached, match="holds 3 sessions at a time") as caught:
            await session.ask("reset", {"seed": 1})
        assert caught.value.most == 3
        await session.socket.close()


async def test_malformed_tools_are_refused() -> None:
    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read(reader)
        writer.write(frame(1, json.dumps({"data": {"result": {"tools": [{"name": 3}]}}}).encode()))
        await reader.read()

    async with served(server) as url:
        session = await Address(url=url, timeout_s=20, ping_s=20).open()
        with pytest.raises(ValueError, match="name"):
            await session.tools()
        await session.aclose()
