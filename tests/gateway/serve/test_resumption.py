"""Streams that broke, which a client resumes at `serve` itself; what is kept for it is bounded."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp.server.streamable_http import EventMessage
from mcp_types import JSONRPCMessage, JSONRPCNotification, JSONRPCResponse
from raw_clients import raw_server
from served import served

from mcp_rollout import GatewayConfig
from mcp_rollout.gateway.serve.client_sessions import RecentEvents

pytestmark = pytest.mark.anyio
SERVER = str(Path(__file__).parents[2] / "support" / "asking_client_server.py")
HEADERS = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25"}
BEGIN = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
REPORT = {"name": "report", "arguments": {}, "_meta": {"progressToken": "mine"}}


@asynccontextmanager
async def session() -> AsyncIterator[tuple[httpx2.AsyncClient, str]]:
    """A client within a session of its own, and the address that it asks."""
    async with raw_server([SERVER]) as port, httpx2.AsyncClient(headers=HEADERS, timeout=60) as http:
        entry = {"url": f"http://127.0.0.1:{port}/mcp", "required": True}
        async with served(GatewayConfig.model_validate({"servers": {"asker": entry}})) as running:
            begin = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": BEGIN}
            http.headers["mcp-session-id"] = (await http.post(running.url, json=begin)).headers["mcp-session-id"]
            await http.post(running.url, json={"jsonrpc": "2.0", "method": "notifications/initialized"})
            yield http, running.url


async def first_event(response: httpx2.Response) -> str:
    """The id of a stream's first event."""
    async for line in response.aiter_lines():
        if line.startswith("id: "):
            return line[4:]
    raise AssertionError("the stream ended without an event")


@asynccontextmanager
async def resumed(http: httpx2.AsyncClient, url: str, call: dict[str, Any]) -> AsyncIterator[httpx2.Response]:
    """The stream of a call, left at its first event and resumed there at once."""
    asked = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}
    async with http.stream("POST", url, json=asked) as broken:
        last = await first_event(broken)
    async with http.stream("GET", url, headers={"last-event-id": last}) as stream:
        yield stream


async def test_a_stream_that_broke_resumes_where_it_was() -> None:
    async with session() as (http, url), resumed(http, url, REPORT) as stream:
        # The response ends it.
        got = [json.loads(line[6:]) async for line in stream.aiter_lines() if line.startswith("data: {")]
    steps = [each["params"] for each in got if each.get("method") == "notifications/progress"]
    assert [(step["progressToken"], step["progress"]) for step in steps] == [("mine", 1), ("mine", 2), ("mine", 3)]
    assert got[-1]["id"] == 2 and got[-1]["result"]["content"][0]["text"] == "reported"


async def test_a_resumed_stream_ends_with_its_session() -> None:
    async with session() as (http, url), resumed(http, url, {"name": "wait", "arguments": {}}) as stream:
        await http.delete(url)
        assert not [line async for line in stream.aiter_lines() if line.startswith("data: {")]


async def replayed(kept: RecentEvents, last: int, meanwhile: Sequence[JSONRPCMessage] = ()) -> list[int]:
    """The events of a resumed stream; these ones are stored while the first of them is sent."""
    found: list[int] = []

    async def take(event: EventMessage) -> None:
        found.append(int(event.event_id or 0))
        for message in meanwhile if len(found) == 1 else ():
            await kept.store_event("a", message)

    with anyio.fail_after(60):
        await kept.replay_events_after(str(last), take)
    return found


async def test_what_is_kept_is_bounded_and_a_stream_resumes_with_all_that_followed_in_it_or_not_at_all() -> None:
    chance, all_resumed = random.Random(1), 0
    for most, most_bytes in [(4, 10_000), (100, 10_000), (12, 3_000)] * 30:
        kept, stored = RecentEvents(most, most_bytes), list[tuple[int, str, int]]()
        for number in range(1, 30):
            of, size = chance.choice("abc"), chance.choice([0, 10, 1_000, most_bytes + 1])
            text = {"text": "x" * size}
            await kept.store_event(of, JSONRPCNotification(jsonrpc="2.0", method="m", params=text) if size else None)
            stored.append((number, of, size))
        for number, of in enumerate("abc", 30):
            await kept.store_event(of, JSONRPCResponse(jsonrpc="2.0", id=1, result={}))
            stored.append((number, of, 1))
        resumed = 0
        for number, of, _ in stored:
            after = [other for other, stream, size in stored[number:] if stream == of and size]
            found = await replayed(kept, number)
            assert found in ([], after), (number, stored)
            resumed += found != []
        assert resumed <= most and sum(size for _, _, size in stored[len(stored) - resumed :]) <= most_bytes
        all_resumed += resumed
    assert all_resumed > 100


@pytest.mark.parametrize(("most", "found"), [(10, [2, 3, 4]), (2, [2])])
async def test_a_resumed_stream_has_what_is_stored_meanwhile_or_ends_where_its_reader_is_too_slow(
    most: int, found: list[int]
) -> None:
    kept, note = RecentEvents(most, 10_000), JSONRPCNotification(jsonrpc="2.0", method="m")
    more = [note] * (1 if most > 2 else 4) + [JSONRPCResponse(jsonrpc="2.0", id=1, result={})]
    for _ in range(2):
        await kept.store_event("a", note)
    assert await replayed(kept, 1, more) == found
