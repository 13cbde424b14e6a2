"""The worlds: `lab.benchmarks.faults.server` with tools of the harness and, beside streamable HTTP, the older SSE.

    python -I -S lab/benchmarks/reconcile/server.py stdio FOLDER
    python -I -S lab/benchmarks/reconcile/server.py http FOLDER PORT

FOLDER has `plan.json`. The log names the trajectory of each call, as `_meta` tells it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    root = Path(__file__).parents[3]
    sys.path[:0] = [str(root), str(root / "tests" / "support")]

from breaking import Request, begin_stream, chunk, event, respond

from lab.benchmarks.faults.plan import REFUSED, Fault, call_name, text_of
from lab.benchmarks.faults.server import OverHttp, PipeLine, Tools, World, over_pipes
from lab.benchmarks.reconcile.plan import CALLS_OF_A_SCORE, CHANGE, ROLES, Storm

Json = dict[str, Any]
_CALL = re.compile(r"[a-z]+-\d+\.\d+\.[01]")
_TRAJECTORY = "mcp-rollout/trajectory"
_MOST_MOVES = 4
_OF_THE_CALL = ("fault", "redirected again")
_SCHEMAS: dict[str, Json] = {
    "append": {"id": {"type": "string"}},
    "reset": {"task": {"type": "string"}, "seed": {"type": "integer"}},
    "start": {},
    "reply": {"seq": {"type": "integer"}, "message": {"type": "string"}},
    "score": {"messages": {"type": "array"}},
    "release": {},
}


def _definition(name: str) -> Json:
    properties = _SCHEMAS[name]
    schema: Json = {"type": "object", "properties": properties, "required": list(properties)}
    tool: Json = {"name": name, "description": f"{name}.", "inputSchema": schema}
    return tool | ({"_meta": {"mcp-rollout/role": name}} if name in ROLES else {})


_DEFINITIONS = [_definition(name) for name in _SCHEMAS]


class Worlds(Tools):
    """Tools of a world: `append` for the policy, and the harness's."""

    def __init__(self, folder: Path, plan: Storm) -> None:
        super().__init__(folder, plan)
        self._rows: dict[str, str] = {}
        """The row by world."""
        self._moved: dict[str, list[str]] = {}
        """By call, the trajectory that is redirected again, after as many empty names as it was redirected."""
        self._trajectory = ""
        """Of the call that is looked at."""

    def result(self, message: Json, world: World) -> Json:
        if message["method"] == "tools/list":
            with suppress(FileNotFoundError):  # that of another connection, if there is none
                world.changes.append((self._folder / CHANGE).read_text())
                (self._folder / CHANGE).unlink()
                self.note("changed", "all.0.0", kind=Fault.CHANGED, world=world.name)
        return super().result(message, world)

    def definitions(self, world: World) -> list[Json]:
        return [*super().definitions(world), *_DEFINITIONS[1:]] if world.changes else _DEFINITIONS

    def named(self, message: Json, world: World) -> str:
        name, arguments = message["params"]["name"], message["params"]["arguments"]
        self._trajectory = message["params"].get("_meta", {}).get(_TRAJECTORY, "")
        if name == "reset":
            self._rows[world.name] = arguments["task"]
            world.done = []
        row = self._rows.get(world.name, "none")
        if name == "append":
            # The policy writes what it likes; such a call has a fate too, and no fault.
            call = arguments["id"]
            return call if _CALL.fullmatch(call) and call.startswith(f"{row}.") else f"{row}.odd.0"
        return call_name(row, f"{name}{arguments.get('seq', '')}", 0)  # pyright: ignore[reportArgumentType]

    def about(self, message: Json, world: World) -> Json:
        trajectory = message["params"].get("_meta", {}).get(_TRAJECTORY, "")
        return super().about(message, world) | {"trajectory": trajectory, "row": self._rows.get(world.name, "none")}

    def note(self, what: str, call: str, **more: Any) -> None:
        # A fault is drawn right after its call was named.
        super().note(what, call, **({"trajectory": self._trajectory} if what in _OF_THE_CALL else {}), **more)

    def carry_out(self, call: str, message: Json, world: World) -> Json:
        about = self.about(message, world)
        match message["params"]["name"]:
            case "append" if call.endswith(".odd.0"):
                return {"content": [{"type": "text", "text": REFUSED}], "isError": True}
            case "append":
                world.done.append(call)
                self.note("effect", call, **about)
                return {"content": [{"type": "text", "text": text_of(call)}]}
            case "start":
                result: Json = {"message": "Begin."}
            case "reply":
                result = {"message": f"Go on ({message['params']['arguments']['seq']}).", "done": False}
            case "score":
                result = {"score": len(world.done) / CALLS_OF_A_SCORE, "parts": {}}
            case _:
                result = {}
        return {"content": [{"type": "text", "text": json.dumps(result)}], "structuredContent": result}

    def _fault(self, call: str) -> Fault | None:
        kind = super()._fault(call)
        if kind is Fault.MOVED and self.plan.rng(call, "again").random() < 0.5:
            self._moved[call] = [self._trajectory]
        elif kind is None and self._trajectory in self._moved.get(call, ())[:_MOST_MOVES]:
            self._moved[call].insert(0, "")
            self.note("redirected again", call)
            return Fault.MOVED
        return kind


class OverBoth(OverHttp):
    """Streamable HTTP at `/mcp`, and the older transport at `/sse`."""

    def __init__(self, tools: Worlds, port: int) -> None:
        super().__init__(tools, port)
        self._streams: dict[str, tuple[asyncio.StreamWriter, World]] = {}

    async def _serve(self, request: Request, writer: asyncio.StreamWriter) -> None:
        path, _, name = request.path.partition("?stream=")
        if path == "/sse" and request.method == "GET":
            self._opened += 1
            world = World(f"stream-{os.getpid()}-{self._opened}")
            self._streams[world.name] = writer, world
            await begin_stream(writer)
            await chunk(writer, b"event: endpoint\ndata: /messages?stream=%s\n\n" % world.name.encode())
        elif path == "/messages":
            if name not in self._streams:
                return await respond(writer, 404, b"", kind="")
            message, (stream, world) = request.message, self._streams[name]
            line = SseLine(writer, stream)
            if message.get("method") == "tools/call":
                return await self.tools.call(message, world, line)
            await line.accept()
            if "id" in message and "method" in message:
                await line.answer(self.tools.result(message, world))
        else:
            await super()._serve(request, writer)

    def die(self) -> None:
        self.tools.note("died", "all.0.0")
        self._streams.clear()
        super().die()


class SseLine(PipeLine):
    """The answer to one POST, on the stream of its session."""

    def __init__(self, post: asyncio.StreamWriter, stream: asyncio.StreamWriter) -> None:
        self._post, self._stream, self._accepted = post, stream, False

    async def accept(self) -> None:
        if not self._accepted:
            self._accepted = True
            await respond(self._post, 202, b"", kind="")

    async def answer(self, *messages: Json) -> None:
        await self.accept()
        for message in messages:
            await chunk(self._stream, event(message))

    async def half(self, message: Json) -> None:
        await self.accept()
        whole = event(message)
        await chunk(self._stream, whole[: len(whole) // 2])
        await self.lose()

    async def lose(self) -> None:
        self._stream.transport.abort()
        self._post.transport.abort()

    async def die(self) -> None:
        await self.lose()

    async def hang(self) -> None:
        await self.accept()  # and no more: to wait here would hold up the next POST of this connection


async def _over_http(tools: Worlds, port: int) -> None:
    server = OverBoth(tools, port)
    async with server.elsewhere, server:
        await asyncio.Event().wait()


def main(kind: str, folder: str, port: str = "0") -> None:
    tools = Worlds(Path(folder), Storm.read(Path(folder)))
    asyncio.run(_over_http(tools, int(port)) if kind == "http" else over_pipes(tools))


if __name__ == "__main__":
    main(*sys.argv[1:])
