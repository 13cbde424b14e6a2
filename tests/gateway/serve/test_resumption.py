"""Streams that broke, which a client resumes at `serve` itself; what is kept for it is bounded."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.server.streamable_http import EventMessage
from mcp_types import JSONRPCMessage, JSONRPCNotification
from raw_clients import raw_server
from served import served

from gateway import GatewayConfig
from gateway.serve.client_sessions import RecentEvents

pytestmark = pytest.mark.anyio
SERVER = str(Path(__file__).parents[2] / "support" / "asking_client_server.py")
HEADERS = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25"}
BEGIN = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
REPORT = {"name": "report", "arguments": {}, "_meta": {"progressToken": "mine"}}


@asynccontextmanager
async def resumed(**options: Any) -> AsyncIterator[list[dict[str, Any]]]:
    """The messages of a resumed stream of a call whose stream was left after its first event."""
    async with raw_server([SERVER]) as port, httpx2.AsyncClient(headers=HEADERS, timeout=60) as http:
        entry = {"url": f"http://127.0.0.1:{port}/mcp", "required": True}
        async with served(GatewayConfig.model_validate({"servers": {"asker": entry}}), **options) as running:

            async def post(method: str, params: Any, **more: Any) -> httpx2.Response:
                return await http.post(running.url, json={"jsonrpc": "2.0", "method": method, "params": params, **more})

            http.headers["mcp-session-id"] = (await post("initialize", BEGIN, id=1)).headers["mcp-session-id"]
            await post("notifications/initialized", {})
            asked = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": REPORT}
            async with http.stream("POST", running.url, json=asked) as broken:
                lines = broken.aiter_lines()
                last = next(line for line in [await anext(lines) for _ in range(3)] if line.startswith("id: "))
            got: list[dict[str, Any]] = []
            async with http.stream("GET", running.url, headers={"last-event-id": last[4:]}) as stream:
                async for line in stream.aiter_lines():
                    if line.startswith("data: {"):
                        got.append(json.loads(line[6:]))
                    if got and "result" in got[-1]:
                        break
            yield got


async def test_a_stream_that_broke_resumes_where_it_was() -> None:
    async with resumed() as got:
        steps = [each["params"] for each in got if each.get("method") == "notifications/progress"]
        assert [(step["progressToken"], step["progress"]) for step in steps] == [("mine", 1), ("mine", 2), ("mine", 3)]
        assert got[-1]["id"] == 2 and got[-1]["result"]["content"][0]["text"] == "reported"


def message(text: str) -> JSONRPCMessage:
    return JSONRPCNotification(jsonrpc="2.0", method="m", params={"text": text})


async def replayed(kept: RecentEvents, last: str) -> tuple[str | None, list[str | None]]:
    found: list[str | None] = []

    async def take(event: EventMessage) -> None:
        found.append(event.event_id)

    return await kept.replay_events_after(last, take), found


async def test_events_are_bounded_in_number() -> None:
    kept = RecentEvents(3, 10_000)
    for number in range(5):
        await kept.store_event("a" if number % 2 else "b", message(str(number)))
    assert await replayed(kept, "3") == ("b", ["5"])
    assert await replayed(kept, "2") == (None, [])


async def test_events_are_bounded_in_bytes() -> None:
    kept = RecentEvents(100, 10_000)
    for _ in range(5):
        await kept.store_event("a", message("x" * 3000))
    assert await replayed(kept, "3") == ("a", ["4", "5"])
    assert await replayed(kept, "2") == (None, [])
    await kept.store_event("a", message("x" * 11_000))
    assert await replayed(kept, "5") == (None, [])
    await kept.store_event("a", None)
    await kept.store_event("a", message("last"))
    assert await replayed(kept, "7") == ("a", ["8"])
