"""MCP servers over raw sockets that record each execution of a call before its effect, and then break as planned.

Both speak the handshake era (2025-06-18): `BreakingHttp` streamable HTTP with a session id, `BreakingSse` the older SSE
transport. What happens to a call is in `plan` under the `id` among its arguments, one break for each attempt.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

Json = dict[str, Any]
STATUSES = (400, 403, 405, 408, 409, 413, 422, 425, 429, 500, 502, 503, 504)
BODIES = ("json-rpc", "refusal", "json", "text", "none")
RESUMED = ("refused", "refused with JSON", "not a stream", "unreachable", "late", "answered", "broken", "ended")
CONNECTION = ("closed after reading", "closed after running", "half a head")
HTTP_BREAKS = (
    *CONNECTION,
    *(f"status {status} {body}" for status in STATUSES for body in BODIES),
    *("session ended none", "session ended json-rpc") * 3,
    *("half a document", "half a document in chunks", "truncated JSON", "web page", "accepted", "redirected"),
    *(f"stream {how} without an id" for how in ("ends", "breaks")),
    *(f"stream {how}, then {resumed}" for how in ("ends", "breaks") for resumed in RESUMED),
    "garbage event",
)
SSE_BREAKS = (
    *CONNECTION,
    *(f"status {status} {body}" for status in (404, *STATUSES) for body in BODIES),
    *("redirected", "garbage event", "several lines", "several lines"),
    *(f"stream {how} {when}" for how in ("ends", "breaks") for when in ("before", "after", "amid")),
)
TOOLS = (("put", {}), ("look", {"readOnlyHint": True}), ("assign", {"idempotentHint": True}))
REPEATABLE = frozenset(name for name, hints in TOOLS if hints)


class Closed(Exception):
    """The server closes the connection that it is serving."""


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def message(self) -> Json:
        return json.loads(self.body)


class Breaking:
    """What both servers share: the listener, reading requests, and the account of what ran.

    Args:
        unread: Share of the requests within a session whose connection is closed before they are read.
    """

    def __init__(self, rng: random.Random, unread: float = 0.0) -> None:
        self._rng, self.unread = rng, unread
        self.plan: defaultdict[str, list[str]] = defaultdict(list)
        self.schema: Json = {"type": "object", "properties": {"id": {"type": "string"}}}
        """Of the arguments of every tool."""
        self.ran: Counter[str] = Counter()
        self.broken: Counter[str] = Counter()
        """Breaks so far, by kind."""
        self._listener: socket.socket | None = None
        # Bound and never listening, so that the port stays the server's own while it is unreachable.
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", 0))
        self._port = self._reserved.getsockname()[1]
        self._unreachable: set[str] = set()
        self._over: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._idle: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop_listening()
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.gather(*self._tasks)
        self._reserved.close()

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def call_over(self, call: str) -> None:
        """The client's call has ended: where it made the server unreachable, the server is reachable again."""
        self._over.add(call)
        self._unreachable.discard(call)
        if self._listener is None and not self._unreachable:
            self._listen()

    def _listen(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self._port), backlog=1000)
        self._listener.setblocking(False)
        asyncio.get_running_loop().add_reader(self._listener, self._accept, self._listener)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def _become_unreachable(self, call: str) -> None:
        if call in self._over:
            return  # the client gave it up while it ran
        self._unreachable.add(call)
        self._stop_listening()
        for writer in self._idle:
            writer.close()

    def _accept(self, listener: socket.socket) -> None:
        accepted, _ = listener.accept()
        task = asyncio.get_running_loop().create_task(self._accepted(accepted))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accepted(self, accepted: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=accepted)
        self._writers.add(writer)
        try:
            while True:
                self._idle.add(writer)
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                self._idle.discard(writer)
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
                if self._in_session(head[0], headers) and self._rng.random() < self.unread:
                    self.broken["closed before reading"] += 1
                    raise Closed
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                method, path, _ = head[0].split(" ")
                await self._serve(Request(method, path, headers, body), writer)
        except (Closed, OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._idle.discard(writer)
            self._writers.discard(writer)
            writer.transport.abort() if self._rng.random() < 0.5 else writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def _in_session(self, line: str, headers: Json) -> bool:
        raise NotImplementedError

    async def _serve(self, request: Request, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError

    def _next_break(self, call: str) -> str:
        kind = self.plan[call].pop(0) if self.plan[call] else ""
        if kind:
            self.broken[kind] += 1
        return kind

    async def _run(self, call: str) -> None:
        """The effect, written down first; calls take different times, so that others are in flight."""
        self.ran[call] += 1
        await asyncio.sleep(self._rng.choice((0, 0, 0.005, 0.02)))

    def _result(self, message: Json) -> Json:
        """The answer to any request but a call."""
        match message["method"]:
            case "initialize":
                result: Json = {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "breaking", "version": "1"},
                }
            case "tools/list":
                tools = [{"name": name, "inputSchema": self.schema, "annotations": hints} for name, hints in TOOLS]
                result = {"tools": tools}
            case _:
                return {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "no such method"}}
        return {"jsonrpc": "2.0", "id": message["id"], "result": result}

    def _answer(self, message: Json) -> Json:
        content = [{"type": "text", "text": message["params"]["arguments"]["id"]}]
        return {"jsonrpc": "2.0", "id": message["id"], "result": {"content": content}}

    async def _status(self, writer: asyncio.StreamWriter, message: Json, kind: str) -> None:
        _, status, body = kind.split()
        match body:
            case "json-rpc":
                error = {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32603, "message": "it broke"}}
                await respond(writer, int(status), json.dumps(error).encode())
            case "refusal":
                error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "not accepted"}}
                await respond(writer, int(status), json.dumps(error).encode())
            case "json":
                await respond(writer, int(status), b'{"detail": "it broke"}')
            case "text":
                await respond(writer, int(status), b"it broke", kind="text/plain")
            case _:
                await respond(writer, int(status), b"", kind="")

    async def _break_connection(self, writer: asyncio.StreamWriter, call: str, kind: str) -> None:
        if kind != "closed after reading":
            await self._run(call)
        if kind == "half a head":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Le")
            await writer.drain()
        raise Closed


async def respond(
    writer: asyncio.StreamWriter,
    status: int,
    body: bytes,
    *,
    kind: str = "application/json",
    length: int | None = None,
    **headers: str,
) -> None:
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body) if length is None else length}"]
    lines += [f"Content-Type: {kind}"] * bool(kind)
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    await writer.drain()


async def begin_stream(writer: asyncio.StreamWriter, kind: str = "text/event-stream") -> None:
    writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    await writer.drain()


async def chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))
    await writer.drain()


def event(message: Json, name: str = "message", indent: int | None = None) -> bytes:
    lines = json.dumps(message, indent=indent).encode().split(b"\n")
    return b"event: %s\n" % name.encode() + b"".join(b"data: %s\n" % line for line in lines) + b"\n"


class BreakingHttp(Breaking):
    """Streamable HTTP. Breaks of kind `session ended` answer 404, as does every later request of that session."""

    def __init__(self, rng: random.Random, unread: float = 0.0) -> None:
        super().__init__(rng, unread)
        self._sessions: set[str] = set()
        self._opened = 0
        self._resumed: dict[str, tuple[str, Json]] = {}
        """By call: how a GET that resumes its stream ends, and what the call answered."""

    @property
    def entry(self) -> Json:
        return {"url": f"{self.origin}/mcp"}

    def _in_session(self, line: str, headers: Json) -> bool:
        return "mcp-session-id" in headers

    async def _serve(self, request: Request, writer: asyncio.StreamWriter) -> None:
        session = request.headers.get("mcp-session-id")
        if request.method == "DELETE":
            await respond(writer, 200, b"", kind="")
        elif session is not None and session not in self._sessions:
            await respond(writer, 404, b"", kind="")
        elif request.method == "GET":
            await self._resume(request.headers.get("last-event-id", ""), writer)
        elif (message := request.message).get("method") == "tools/call":
            await self._call(message, session or "", writer)
        elif "id" not in message:
            await respond(writer, 202, b"", kind="")
        else:
            headers: dict[str, str] = {}
            if message["method"] == "initialize":
                self._opened += 1
                headers["Mcp_Session_Id"] = f"session-{self._opened}"
                self._sessions.add(headers["Mcp_Session_Id"])
            await respond(writer, 200, json.dumps(self._result(message)).encode(), **headers)

    async def _call(self, message: Json, session: str, writer: asyncio.StreamWriter) -> None:
        call = message["params"]["arguments"]["id"]
        kind, answer = self._next_break(call), self._answer(message)
        body = json.dumps(answer).encode()
        if kind in CONNECTION:
            await self._break_connection(writer, call, kind)
        if kind.startswith("session ended"):
            self._sessions.discard(session)
            error = b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32600, "message": "Session not found"}}'
            with_body = kind.endswith("json-rpc")
            return await respond(writer, 404, error * with_body, kind="application/json" if with_body else "")
        await self._run(call)
        if kind.startswith("status"):
            return await self._status(writer, message, kind)
        match kind:
            case "half a document":
                await respond(writer, 200, body[: len(body) // 2], length=len(body))
                raise Closed
            case "half a document in chunks":
                await begin_stream(writer, "application/json")
                await chunk(writer, body[: len(body) // 2])
                raise Closed
            case "truncated JSON":
                await respond(writer, 200, body[: len(body) // 2])
            case "web page":
                await respond(writer, 200, b"<p>", kind="text/html")
            case "accepted":
                await respond(writer, 202, b"", kind="")
            case "redirected":
                await respond(writer, 307, b"{}", Location="http://127.0.0.1:9/elsewhere")
            case _ if self._rng.random() < 0.5 and not kind:
                await respond(writer, 200, body)
            case _:
                await self._stream(writer, call, kind, answer)

    async def _stream(self, writer: asyncio.StreamWriter, call: str, kind: str, answer: Json) -> None:
        await begin_stream(writer)
        if kind == "garbage event":
            await chunk(writer, b"event: message\ndata: {]}\n\n")
        elif kind:
            if ", then " in kind:
                resumed = kind.partition(", then ")[2]
                self._resumed[call] = resumed, answer
                if resumed == "unreachable":
                    self._become_unreachable(call)
                await chunk(writer, b"id: %s\nretry: 0\ndata:\n\n" % call.encode())
            if kind.startswith("stream breaks"):
                await chunk(writer, b"event: message\ndata: {")
                raise Closed
        else:
            await chunk(writer, event(answer))
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _resume(self, call: str, writer: asyncio.StreamWriter) -> None:
        resumed, answer = self._resumed.get(call, ("refused", {}))
        match resumed:
            case "refused" | "unreachable":
                return await respond(writer, 405, b"", kind="")
            case "refused with JSON":
                return await respond(writer, 400, b'{"detail": "no"}')
            case "not a stream":
                return await respond(writer, 200, b'{"detail": "no"}')
            case "late":
                await asyncio.sleep(0.05)
        await begin_stream(writer)
        if resumed == "broken":
            await chunk(writer, b"event: message\ndata: {")
            raise Closed
        if resumed == "ended":  # without an answer; the next attempt gets one
            self._resumed[call] = "answered", answer
            await chunk(writer, b"id: %s\nretry: 0\ndata:\n\n" % call.encode())
        else:
            await chunk(writer, event(answer))
        writer.write(b"0\r\n\r\n")
        await writer.drain()


class BreakingSse(Breaking):
    """The older transport: one event stream for all answers, one POST for each message."""

    def __init__(self, rng: random.Random, unread: float = 0.0) -> None:
        super().__init__(rng, unread)
        self._streams: dict[str, asyncio.StreamWriter] = {}
        self._ready: set[str] = set()
        """Streams whose handshake is over."""
        self._opened = 0

    @property
    def entry(self) -> Json:
        return {"url": f"{self.origin}/sse", "type": "sse"}

    def _in_session(self, line: str, headers: Json) -> bool:
        return parse_qs(urlsplit(line.split(" ")[1]).query).get("stream", [""])[0] in self._ready

    async def _serve(self, request: Request, writer: asyncio.StreamWriter) -> None:
        if request.method == "GET":
            self._opened += 1
            name = f"stream-{self._opened}"
            self._streams[name] = writer
            await begin_stream(writer)
            await chunk(writer, b"event: endpoint\ndata: /messages?stream=%s\n\n" % name.encode())
            return
        name = parse_qs(urlsplit(request.path).query)["stream"][0]
        message, stream = request.message, self._streams[name]
        if message.get("method") == "tools/call":
            return await self._call(message, stream, writer)
        await respond(writer, 202, b"", kind="")
        if "id" in message:
            await self._say(stream, event(self._result(message)))
        if message.get("method") == "tools/list":
            self._ready.add(name)

    async def _call(self, message: Json, stream: asyncio.StreamWriter, writer: asyncio.StreamWriter) -> None:
        call = message["params"]["arguments"]["id"]
        kind, answer = self._next_break(call), self._answer(message)
        if kind in CONNECTION:
            await self._break_connection(writer, call, kind)
        if kind.startswith("stream") and kind.endswith("before"):
            return self._end(stream, kind)
        if self._rng.random() < 0.5 and not kind:
            await respond(writer, 202, b"", kind="")
            await self._run(call)
            return await self._say(stream, event(answer))
        await self._run(call)
        if kind.startswith("status"):
            if self._rng.random() < 0.5:  # some proxies give up on a POST that was served
                await self._say(stream, event(answer))
            return await self._status(writer, message, kind)
        if kind == "redirected":
            return await respond(writer, 307, b"{}", Location="http://127.0.0.1:9/elsewhere")
        await respond(writer, 202, b"", kind="")
        if kind == "garbage event":
            await self._say(stream, b"data: {]}\n\ndata\n\xff\xff\n\n")
        elif kind.endswith("amid"):
            await self._say(stream, event(answer)[:40])
        if kind.startswith("stream"):
            return self._end(stream, kind)
        await self._say(stream, event(answer, indent=2 if kind == "several lines" else None))

    def _end(self, stream: asyncio.StreamWriter, kind: str) -> None:
        if kind.startswith("stream ends"):
            stream.write(b"0\r\n\r\n")
            stream.close()
        else:
            stream.transport.abort()

    async def _say(self, stream: asyncio.StreamWriter, data: bytes) -> None:
        if not stream.transport.is_closing():
            await chunk(stream, data)


@asynccontextmanager
async def breaking(kind: type[Breaking], seed: str, unread: float = 0.02) -> AsyncIterator[Breaking]:
    """A server of this kind, listening as long as the block lasts."""
    async with kind(random.Random(seed), unread) as server:
        yield server
