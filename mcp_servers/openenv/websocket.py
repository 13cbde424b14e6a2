"""A client's end of a WebSocket (RFC 6455): text messages, pings, and a bound on everything."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import ssl
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

_TEXT, _BINARY, _CLOSE, _PING, _PONG = 1, 2, 8, 9, 10
_ACCEPT = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_HEAD_BYTES = 1 << 16
_QUEUED = 64


class WebSocket:
    """A connection that answers and sends pings by itself, also while nobody receives.

    Args:
        ping_s: After so long without a frame from the server a ping is sent, and after as long again the connection
            counts as lost: so a half-open one is noticed while a step takes long, and between steps.
        most_bytes: Longest message.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, ping_s: float, most_bytes: int
    ) -> None:
        self._reader, self._writer, self._ping_s, self._most_bytes = reader, writer, ping_s, most_bytes
        self._received: asyncio.Queue[str | Exception] = asyncio.Queue(_QUEUED)
        self._lost: Exception | None = None
        self._task = asyncio.create_task(self._read())

    @classmethod
    async def connect(cls, url: str, *, timeout_s: float, ping_s: float, most_bytes: int) -> Self:
        """Raises ConnectionError, also where the server does not answer in time or refuses."""
        parts = urlsplit(url)
        secure = ssl.create_default_context() if parts.scheme == "wss" else None
        port = parts.port or (443 if secure else 80)
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=secure, limit=_HEAD_BYTES)
                try:
                    await _shake_hands(reader, writer, parts.netloc.rpartition("@")[2], parts.path or "/")
                except BaseException:  # a cancellation too: no connection is left behind
                    await _abort(writer)
                    raise
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise ConnectionError(f"{url}: {str(error) or 'no answer in time'}") from error
        return cls(reader, writer, ping_s=ping_s, most_bytes=most_bytes)

    async def send(self, text: str) -> None:
        """Raises ConnectionError if the connection is lost."""
        if self._lost is not None:
            raise ConnectionError(str(self._lost)) from self._lost
        self._frame_out(_TEXT, text.encode())
        await self._writer.drain()

    async def receive(self) -> str:
        """The next message. Raises ConnectionError if the connection is lost or the server closes it."""
        if self._lost is not None and self._received.empty():
            raise ConnectionError(str(self._lost)) from self._lost
        received = await self._received.get()
        if isinstance(received, Exception):
            raise ConnectionError(str(received)) from received
        return received

    async def close(self) -> None:
        """Say goodbye and close; waits for no answer."""
        if self._lost is None:
            self._frame_out(_CLOSE, b"\x03\xe8")
        self._task.cancel()
        await asyncio.wait({self._task})
        await _abort(self._writer)

    async def _read(self) -> None:
        try:
            while True:
                await self._received.put(await self._message())
        except (OSError, asyncio.IncompleteReadError) as error:
            lost = "the server closed the connection" if isinstance(error, asyncio.IncompleteReadError) else str(error)
            self._lost = ConnectionError(lost)
            self._writer.close()
            if not self._received.full():
                self._received.put_nowait(self._lost)

    async def _message(self) -> str:
        parts, size = list[bytes](), 0
        while True:
            final, opcode, payload = await self._heard()
            match opcode:
                case 8:
                    raise ConnectionError(f"the server closed the connection: {payload[2:].decode(errors='replace')}")
                case 9:
                    self._frame_out(_PONG, payload)
                case 10:
                    pass
                case _:
                    parts.append(payload)
                    size += len(payload)
                    if size > self._most_bytes:
                        raise ConnectionError(f"a message of more than {self._most_bytes} bytes")
                    if final:
                        return b"".join(parts).decode(errors="replace")

    async def _heard(self) -> tuple[bool, int, bytes]:
        """The next frame. Raises ConnectionError where not even a ping is answered."""
        # A task, which is not cancelled by the wait: a frame may have come in part.
        frame = asyncio.create_task(self._frame_in())
        try:
            if not (await asyncio.wait({frame}, timeout=self._ping_s))[0]:
                self._frame_out(_PING, b"")
                if not (await asyncio.wait({frame}, timeout=self._ping_s))[0]:
                    raise ConnectionError(f"nothing was heard for {2 * self._ping_s:g} s, a ping was not answered")
            return frame.result()
        finally:
            frame.cancel()

    async def _frame_in(self) -> tuple[bool, int, bytes]:
        first, second = await self._reader.readexactly(2)
        length = second & 0x7F
        if length >= 126:
            length = int.from_bytes(await self._reader.readexactly(2 if length == 126 else 8))
        if length > self._most_bytes or second & 0x80:
            raise ConnectionError(f"a frame of {length} bytes, or a masked one")
        return bool(first & 0x80), first & 0x0F, await self._reader.readexactly(length)

    def _frame_out(self, opcode: int, payload: bytes) -> None:
        size = len(payload)
        if size < 126:
            length = bytes([0x80 | size])
        else:
            length = b"\xfe" + size.to_bytes(2) if size < 1 << 16 else b"\xff" + size.to_bytes(8)
        mask = os.urandom(4)
        key = int.from_bytes((mask * (size // 4 + 1))[:size])
        self._writer.write(bytes([0x80 | opcode]) + length + mask + (int.from_bytes(payload) ^ key).to_bytes(size))


async def _abort(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()  # not `close`, which waits until a peer that may be gone has read what is left
    with suppress(OSError):  # how the connection ended
        await writer.wait_closed()


async def _shake_hands(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, path: str) -> None:
    key = base64.b64encode(os.urandom(16))
    head = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    writer.write(f"{head}Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key.decode()}\r\n\r\n".encode())
    answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    accepted = base64.b64encode(hashlib.sha1(key + _ACCEPT).digest()).decode()
    if " 101 " not in answer.partition("\r\n")[0] or f": {accepted}" not in answer:
        raise ConnectionError(f"is not a WebSocket: {answer.partition(chr(13))[0]}")
