"""CPU time of a server per step, with a client that costs next to nothing: the kit's server beside the SDK's.

    python tests/bench/server_cost.py stdio|http [--sessions 2048] [--steps 3]

The workload is that of `mcp-rollout bench sessions`, in the 2026-07-28 protocol. The client writes and reads bytes
itself, so that it does not limit the server. Prints a line for each side.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

from rollout.bench.costs import cpu_s, listening, missing_descriptors, quantile
from rollout.bench.wait_server import MODULE

VERSION = "2026-07-28"
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
CONNECTS = 256
WAIT_S = 1.0
IDS = count(1)
Ask = Callable[[str, dict[str, Any]], Awaitable[Any]]


def message(method: str, params: dict[str, Any]) -> dict[str, Any]:
    params = {**params, "_meta": {**ENVELOPE, **params.get("_meta", {})}}
    return {"jsonrpc": "2.0", "id": next(IDS), "method": method, "params": params}


async def play(side: str, pid: int, ask: Ask, sessions: int, steps: int) -> None:
    waits: list[float] = []

    async def call(number: int, name: str, arguments: dict[str, Any]) -> Any:
        meta = {"mcp-rollout/trajectory": f"t{number}", "mcp-rollout/seed": number}
        answer = await ask("tools/call", {"name": name, "arguments": arguments, "_meta": meta})
        return answer["result"]["structuredContent"]

    async def take(number: int) -> None:
        for step in range(1, steps + 1):
            began = time.perf_counter()
            assert await call(number, "step", {"wait_s": WAIT_S}) == {"result": number * 1000 + step}
            waits.append(time.perf_counter() - began - WAIT_S)

    await ask("server/discover", {})
    await asyncio.gather(*(call(number, "reset", {"task": "t", "seed": number}) for number in range(sessions)))
    began, cpu, own = time.perf_counter(), cpu_s(pid), time.process_time()
    await asyncio.gather(*(take(number) for number in range(sessions)))
    figures = {
        "server": side,
        "sessions": sessions,
        "server_ms": round(1e3 * (cpu_s(pid) - cpu) / len(waits), 3),
        "client_ms": round(1e3 * (time.process_time() - own) / len(waits), 3),
        "steps_per_s": round(len(waits) / (time.perf_counter() - began)),
        "p50_ms": round(1e3 * quantile(waits, 0.5)),
        "p99_ms": round(1e3 * quantile(waits, 0.99)),
    }
    print(json.dumps(figures), flush=True)  # noqa: T201 - a program


async def over_stdio(side: str, sessions: int, steps: int) -> None:
    argv = [sys.executable, "-m", MODULE, side]
    process = await asyncio.create_subprocess_exec(*argv, stdin=-1, stdout=-1, limit=1 << 24)
    assert process.stdin is not None and process.stdout is not None
    stdin, stdout = process.stdin, process.stdout
    waiting: dict[int, asyncio.Future[Any]] = {}

    async def read() -> None:
        while line := await stdout.readline():
            answer = json.loads(line)
            waiting.pop(answer["id"]).set_result(answer)

    async def ask(method: str, params: dict[str, Any]) -> Any:
        sent = message(method, params)
        waiting[sent["id"]] = asyncio.get_running_loop().create_future()
        stdin.write(json.dumps(sent).encode() + b"\n")
        return await waiting[sent["id"]]

    reading = asyncio.create_task(read())
    await play(side, process.pid, ask, sessions, steps)
    stdin.close()
    await process.wait()
    await reading


class Connection(asyncio.Protocol):
    """A kept connection with one request at a time, whose answer has a `Content-Length`."""

    answer: asyncio.Future[Any]

    def connection_made(self, transport: Any) -> None:
        self.transport, self._data = transport, b""

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        if end and len(body) >= int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]):
            self._data = b""
            self.answer.set_result(json.loads(body))


async def over_http(side: str, sessions: int, steps: int) -> None:
    with listening([sys.executable, "-m", MODULE, side]) as (process, port):
        loop, free, gate = asyncio.get_running_loop(), list[Connection](), asyncio.Semaphore(CONNECTS)

        async def ask(method: str, params: dict[str, Any]) -> Any:
            if not free:
                async with gate:
                    free.append((await loop.create_connection(Connection, "127.0.0.1", port))[1])
            connection = free.pop()
            connection.answer = loop.create_future()
            body = json.dumps(message(method, params))
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

        await play(side, process.pid, ask, sessions, steps)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("transport", choices=["stdio", "http"])
    parser.add_argument("--sessions", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=3)
    given = parser.parse_args()
    if problem := missing_descriptors(given.sessions):
        sys.exit(f"error: {problem}")
    for server in ("kit", "sdk"):
        asyncio.run((over_stdio if given.transport == "stdio" else over_http)(server, given.sessions, given.steps))
