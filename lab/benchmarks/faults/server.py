"""An MCP server that notes each execution of a call in its log before the effect, and breaks calls as planned.

    python lab/benchmarks/faults/server.py http FOLDER PLAN PORT
    python lab/benchmarks/faults/server.py stdio FOLDER PLAN

It speaks the handshake's era. A protocol session has a world: the names of the calls that took effect in it, in order.
FOLDER gets `log.jsonl`, one line for each event of a call, and a file for each call that has met its fault, so that
a repeated call is answered, also by another process. PLAN is `plan.Plan` as JSON.

Over HTTP it also speaks what OpenEnv's MCP client sends, JSON-RPC with a `session_id` among the parameters.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).parents[3]
if __name__ == "__main__":  # clients start it by its path, from any directory and with any interpreter of ours
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from breaking import Breaking, Closed, Request, begin_stream, chunk, event, respond  # noqa: E402

from lab.benchmarks.faults.plan import DOWN_S, FLOOD, LATE_S, REFUSED, Fault, Plan, sibling, text_of  # noqa: E402

Json = dict[str, Any]
VERSION = "2025-06-18"
_MEET_S = 1.0
"""How long a call waits for the other of its turn, to be answered with its id."""


@dataclass
class World:
    """What one protocol session has done, and the definitions that it reads and has read."""

    name: str
    done: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    """The calls at which the tool's definition changed."""
    read: int = 0
    """How many of these changes its client has read."""
    ids: dict[str, Any] = field(default_factory=dict)
    """JSON-RPC ids by call."""
    openenv: bool = False


class Line(Protocol):
    """How one call is answered, over either transport."""

    async def answer(self, *messages: Json) -> None: ...
    async def twice(self, message: Json) -> None: ...
    async def half(self, message: Json) -> None: ...
    async def lose(self) -> None: ...
    async def hang(self) -> None: ...
    async def die(self) -> None: ...
    async def redirect(self, kind: Fault) -> None: ...


class Tools:
    """Calls, their log, and their faults: all but the transport."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._folder, self.plan = folder, plan
        self._log: int | None = None
        self._arrived: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._handled: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def note(self, what: str, call: str, **more: Any) -> None:
        line = {"at": time.monotonic(), "what": what, "call": call, **more}
        if self._log is None:  # not before the first note: a program that is forked must not share it
            self._log = os.open(self._folder / "log.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(self._log, json.dumps(line).encode() + b"\n")

    def named(self, message: Json, world: World) -> str:
        """The name of a call, by which its fault is drawn and its log lines are found."""
        return message["params"]["arguments"]["id"]

    def _fault(self, call: str) -> Fault | None:
        """The fault of a call that has not met it yet; noted."""
        if (kind := self.plan.fault(call)) is None:
            return None
        try:
            (self._folder / call).touch(exist_ok=False)
        except FileExistsError:
            return None
        self.note("fault", call, kind=kind)
        return kind

    def result(self, message: Json, world: World) -> Json:
        """The answer to any request but a call."""
        match message["method"]:
            case "initialize":
                info = {"name": "faults", "version": "1"}
                result: Json = {
                    "protocolVersion": VERSION,
                    "capabilities": {"tools": {"listChanged": True}},
                    "serverInfo": info,
                }
            case "tools/list":
                world.read = len(world.changes)
                result = {"tools": self.definitions(world)}
            case "openenv/session/create":
                result = {"session_id": world.name}
            case "ping" | "openenv/session/close":
                result = {}
            case _:
                error = {"code": -32601, "message": "no such method"}
                return {"jsonrpc": "2.0", "id": message["id"], "error": error}
        return {"jsonrpc": "2.0", "id": message["id"], "result": result}

    def definitions(self, world: World) -> list[Json]:
        """The one tool, after all its changes."""
        tool: Json = {
            "name": "append",
            "description": "Append an entry.",
            "inputSchema": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
        }
        for number, call in enumerate(world.changes, 1):
            match self.plan.rng(call, "change").choice(("name", "description", "schema")):
                case "name":
                    tool["name"] += f"_{number}"
                case "description":
                    tool["description"] = f"Append an entry. Revision {number}: entries are deleted after a week."
                case _:
                    tool["inputSchema"]["properties"][f"reason_{number}"] = {"type": "string"}
                    tool["inputSchema"]["required"].append(f"reason_{number}")
        return [tool]

    def about(self, message: Json, world: World) -> Json:
        """What the log says of each execution."""
        return {"world": world.name, "unread": len(world.changes) - world.read}

    def carry_out(self, call: str, message: Json, world: World) -> Json:
        """The effect of a call, and its result."""
        world.done.append(call)
        self.note("effect", call, world=world.name, done=world.done)
        return {"content": [{"type": "text", "text": text_of(call)}]}

    async def call(self, message: Json, world: World, line: Line) -> None:
        """One `tools/call`, with its fault."""
        call = self.named(message, world)
        await self._call(call, message, world, line)
        self._handled[call].set()

    async def _call(self, call: str, message: Json, world: World, line: Line) -> None:
        key = message["id"]
        world.ids[call] = key
        self._arrived[call].set()
        kind = self._fault(call)
        if kind is Fault.MOVED or kind is Fault.AWAY:
            return await line.redirect(kind)
        if kind is Fault.BEFORE:
            return await line.lose()
        if self.plan.fault(sibling(call)) is Fault.WRONG_ID and kind is None:
            await _within(_MEET_S, self._handled[sibling(call)])
        if message["params"]["name"] not in {tool["name"] for tool in self.definitions(world)}:
            refusal = {"content": [{"type": "text", "text": REFUSED}], "isError": True}
            return await line.answer({"jsonrpc": "2.0", "id": key, "result": refusal})
        self.note("ran", call, **self.about(message, world))
        if kind is Fault.AMID:
            return await line.lose()
        answer = {"jsonrpc": "2.0", "id": key, "result": self.carry_out(call, message, world)}
        match kind:
            case Fault.AFTER:
                await line.lose()
            case Fault.HALF:
                await line.half(answer)
            case Fault.TWICE:
                await line.twice(answer)
            case Fault.LATE:
                await asyncio.sleep(LATE_S)
                await line.answer(answer)
            case Fault.WRONG_ID:
                await _within(_MEET_S, self._arrived[sibling(call)])
                other = world.ids.get(sibling(call), next(iter(world.ids.values())))
                await line.answer({**answer, "id": other if other != key else -1})
            case Fault.HANG:
                await line.hang()
            case Fault.DIES:
                await line.die()
            case Fault.CHANGED:
                await _within(_MEET_S, self._handled[sibling(call)])
                world.changes.append(call)
                await line.answer({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}, answer)
            case Fault.FLOOD:
                data = {"level": "info", "data": "x" * 100}
                told: Json = {"jsonrpc": "2.0", "method": "notifications/message", "params": data}
                await line.answer(*[told] * FLOOD, answer)
            case _:
                await line.answer(answer)


async def _within(seconds: float, happened: asyncio.Event) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(happened.wait(), seconds)


class Elsewhere(Breaking):
    """Another origin, which answers what is redirected to it with a text of its own."""

    def __init__(self, tools: Tools) -> None:
        super().__init__(random.Random(0))
        self._tools = tools

    def _in_session(self, line: str, headers: Json) -> bool:
        return False

    async def _serve(self, request: Request, writer: asyncio.StreamWriter) -> None:
        self._tools.note("elsewhere", request.message["params"]["arguments"]["id"])
        await HttpLine(writer, None, World("elsewhere")).answer(
            {"jsonrpc": "2.0", "id": request.message["id"], "result": {"content": [{"type": "text", "text": "forged"}]}}
        )


class OverHttp(Breaking):
    """Streamable HTTP with a session id, on a given port; `/moved` serves what `/mcp` does."""

    def __init__(self, tools: Tools, port: int) -> None:
        super().__init__(random.Random(0))
        self._reserved.close()
        self._port = port
        self.tools, self.elsewhere = tools, Elsewhere(tools)
        self._worlds: dict[str, World] = {}
        self._opened = 0

    def _in_session(self, line: str, headers: Json) -> bool:
        return False

    async def _serve(self, request: Request, writer: asyncio.StreamWriter) -> None:
        if request.method != "POST":
            return await respond(writer, 200 if request.method == "DELETE" else 405, b"", kind="")
        message = request.message
        params = message.get("params") or {}
        named = request.headers.get("mcp-session-id") or params.get("session_id")
        begins = message.get("method") in ("initialize", "openenv/session/create")
        if begins:
            self._opened += 1
            named = f"world-{os.getpid()}-{self._opened}"
            self._worlds[named] = World(named, openenv=message["method"] != "initialize")
        elif named is not None and named not in self._worlds:
            return await respond(writer, 404, b"", kind="")
        world = self._worlds[named] if named else World("none")
        if "id" not in message:
            await respond(writer, 202, b"", kind="")
        elif message["method"] == "tools/call":
            await self.tools.call(message, world, HttpLine(writer, self, world, request.path))
        else:
            body = json.dumps(self.tools.result(message, world)).encode()
            await (respond(writer, 200, body, Mcp_Session_Id=world.name) if begins else respond(writer, 200, body))

    def die(self) -> None:
        """Lose every connection and every world, and listen again after a while."""
        self._stop_listening()
        self._worlds.clear()
        for writer in list(self._writers):
            writer.transport.abort()
        asyncio.get_running_loop().call_later(DOWN_S, self._listen)


class HttpLine:
    """The answer to one POST: a document, or an event stream for several messages."""

    def __init__(self, writer: asyncio.StreamWriter, server: OverHttp | None, world: World, path: str = "/mcp") -> None:
        self._writer, self._server, self._world, self._path = writer, server, world, path

    def _body(self, message: Json) -> bytes:
        if self._world.openenv and "content" in (result := message["result"]):
            text = result["content"][0]["text"]
            as_openenv = {"error": {"message": text}} if "isError" in result else {"result": {"data": text}}
            message = {"jsonrpc": "2.0", "id": message["id"], **as_openenv}
        return json.dumps(message).encode()

    async def answer(self, *messages: Json) -> None:
        if len(messages) == 1 or self._world.openenv:  # OpenEnv's client reads documents only
            body = self._body(messages[-1])
            return await respond(self._writer, 200, body + b" " * 100 * (len(messages) - 1))
        await begin_stream(self._writer)
        for message in messages:
            await chunk(self._writer, event(message))
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    async def twice(self, message: Json) -> None:
        if self._world.openenv or message["id"] % 2:  # a second HTTP response that was not asked for
            await respond(self._writer, 200, self._body(message))
            await respond(self._writer, 200, self._body(message))
        else:
            await self.answer(message, message)

    async def half(self, message: Json) -> None:
        body = self._body(message)
        await respond(self._writer, 200, body[: len(body) // 2], length=len(body))
        raise Closed

    async def lose(self) -> None:
        raise Closed

    async def hang(self) -> None:
        await asyncio.Event().wait()

    async def die(self) -> None:
        assert self._server is not None
        self._server.die()
        raise Closed

    async def redirect(self, kind: Fault) -> None:
        assert self._server is not None
        origin = self._server.origin if kind is Fault.MOVED else self._server.elsewhere.origin
        # Not to where the request was sent: some clients stay at the address that they were redirected to.
        elsewhere = "/moved" if self._path == "/mcp" else "/mcp"
        await respond(self._writer, 307, b"", Location=f"{origin}{elsewhere}")


class PipeLine:
    """The answer to one line of standard input."""

    async def answer(self, *messages: Json) -> None:
        sys.stdout.write("".join(json.dumps(message) + "\n" for message in messages))
        sys.stdout.flush()

    async def twice(self, message: Json) -> None:
        await self.answer(message, message)

    async def half(self, message: Json) -> None:
        text = json.dumps(message)
        sys.stdout.write(text[: len(text) // 2])
        sys.stdout.flush()
        os._exit(1)

    async def lose(self) -> None:
        os._exit(1)

    async def hang(self) -> None:
        await asyncio.Event().wait()

    async def die(self) -> None:
        os._exit(1)

    async def redirect(self, kind: Fault) -> None:
        raise NotImplementedError(f"{kind} needs HTTP")


async def over_http(tools: Tools, port: int) -> None:
    server = OverHttp(tools, port)
    async with server.elsewhere, server:
        await asyncio.Event().wait()


async def over_pipes(tools: Tools) -> None:
    reader = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    world, line = World(f"world-{os.getpid()}"), PipeLine()
    calls: set[asyncio.Task[None]] = set()
    while read := await reader.readline():
        message = json.loads(read)
        if "id" not in message or "method" not in message:
            continue
        if message["method"] == "tools/call":
            calls.add(asyncio.create_task(tools.call(message, world, line)))
        else:
            await line.answer(tools.result(message, world))
    os._exit(0)  # calls that are never answered are not waited for


def main(kind: str, folder: str, plan: str, port: str = "0") -> None:
    given = json.loads(plan)
    made = Plan(seed=given["seed"], kinds=tuple(map(Fault, given["kinds"])), share=given["share"])
    tools = Tools(Path(folder), made)
    asyncio.run(over_http(tools, int(port)) if kind == "http" else over_pipes(tools))


if __name__ == "__main__":
    main(*sys.argv[1:])
