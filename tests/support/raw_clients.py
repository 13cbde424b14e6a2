"""Clients that write and read a server's bytes themselves: what an answer is on the wire, and in which order."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
from anyio.streams.buffered import BufferedByteReceiveStream
from programs import listening_program

MODERN, LEGACY = "2026-07-28", "2025-11-25"
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
}
LINE_BYTES = 1 << 20


def request(number: int | str, method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def call(number: int | str, name: str, arguments: dict[str, Any], era: str, **meta: Any) -> dict[str, Any]:
    envelope = ENVELOPE if era == MODERN else {}
    params = {"name": name, "arguments": arguments, "_meta": {**envelope, "mcp-rollout/trajectory": "t", **meta}}
    return request(number, "tools/call", params)


@dataclass
class RawStdio:
    process: anyio.abc.Process
    era: str
    lines: BufferedByteReceiveStream = field(init=False)

    def __post_init__(self) -> None:
        assert self.process.stdout is not None
        self.lines = BufferedByteReceiveStream(self.process.stdout)

    async def send(self, *messages: dict[str, Any] | bytes) -> None:
        """All messages in one write."""
        assert self.process.stdin is not None
        lines = [one if isinstance(one, bytes) else json.dumps(one).encode() + b"\n" for one in messages]
        await self.process.stdin.send(b"".join(lines))

    async def line(self) -> bytes:
        return await self.lines.receive_until(b"\n", LINE_BYTES)

    async def until(self, number: int | str) -> list[bytes]:
        """The lines up to the answer of request `number`."""
        found: list[bytes] = []
        while not found or json.loads(found[-1]).get("id") != number:
            found.append(await self.line())
        return found

    async def open(self) -> None:
        if self.era == MODERN:
            await self.send(request("open", "server/discover", {"_meta": ENVELOPE}))
            await self.until("open")
            return
        client = {"capabilities": {"elicitation": {}}, "clientInfo": {"name": "raw", "version": "1"}}
        await self.send(request("open", "initialize", {"protocolVersion": LEGACY, **client}))
        await self.until("open")
        await self.send({"jsonrpc": "2.0", "method": "notifications/initialized"}, request("ping", "ping", {}))
        await self.until("ping")


@asynccontextmanager
async def raw_stdio(argv: Sequence[str], era: str) -> AsyncIterator[RawStdio]:
    command = [sys.executable, *argv]
    async with await anyio.open_process(command, stderr=None, env=dict(os.environ)) as process:
        try:
            client = RawStdio(process, era)
            with anyio.fail_after(60):
                await client.open()
            yield client
        finally:
            if process.returncode is None:
                process.kill()


@dataclass(frozen=True)
class Answer:
    status: int
    kind: str
    body: bytes


@dataclass
class RawHttp:
    """One kept connection."""

    stream: anyio.abc.SocketStream
    port: int
    received: BufferedByteReceiveStream = field(init=False)

    def __post_init__(self) -> None:
        self.received = BufferedByteReceiveStream(self.stream)

    def post(self, message: dict[str, Any], **headers: str | None) -> bytes:
        """The bytes of a POST; an underscore in a header's name is a hyphen, and None leaves a header out."""
        body = json.dumps(message).encode()
        given: dict[str, str | None] = {
            "host": f"127.0.0.1:{self.port}",
            "content_type": "application/json",
            "accept": "application/json, text/event-stream",
            "mcp_protocol_version": MODERN,
            "mcp_method": message["method"],
            "mcp_name": message["params"].get("name"),
            "content_length": str(len(body)),
            **headers,
        }
        lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in given.items() if value is not None]
        return b"POST /mcp HTTP/1.1\r\n" + "".join(lines).encode() + b"\r\n" + body

    async def answer(self) -> Answer:
        head = await self.received.receive_until(b"\r\n\r\n", 1 << 16)
        first, *lines = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        if "content-length" in headers:
            body = await self.received.receive_exactly(int(headers["content-length"]))
        else:
            body = b""
            while length := int(await self.received.receive_until(b"\r\n", 100), 16):
                body += await self.received.receive_exactly(length)
                await self.received.receive_exactly(2)
            await self.received.receive_exactly(2)
        return Answer(int(first.split()[1]), headers.get("content-type", ""), body)

    async def ask(self, message: dict[str, Any], **headers: str | None) -> Answer:
        await self.stream.send(self.post(message, **headers))
        return await self.answer()


@asynccontextmanager
async def raw_server(argv: Sequence[str]) -> AsyncIterator[int]:
    """The port of a server, whose command gets `HOST:PORT` as its last argument."""
    async with listening_program(lambda port: [sys.executable, *argv, f"127.0.0.1:{port}"]) as port:
        yield port


@asynccontextmanager
async def raw_http(port: int) -> AsyncIterator[RawHttp]:
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        yield RawHttp(stream, port)
