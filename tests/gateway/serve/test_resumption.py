"""Streams that broke, which a client resumes at `serve` itself; what is kept for it is bounded."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
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


async def test_a_stream_is_not_resumed_behind_its_response() -> None:
    # As npm's SDK does after an error: an empty stream would let it open one without an event, beside the one it has.
    async with session() as (http, url):
        asked = {"jsonrpc": "2.0", "id": 2, "method": "prompts/get", "params": {"name": "nope"}}
        answer = (await http.post(url, json=asked)).text.splitlines()
        ids = [line[4:] for line in answer if line.startswith("id: ")]
        assert json.loads(answer[-2].removeprefix("data: "))["error"]["message"] == "Unknown prompt: nope"
        again = await http.get(url, headers={"last-event-id": ids[-1]})
        assert again.status_code == 405
        async with http.stream("GET", url, headers={"last-event-id": ids[0]}) as stream:  # the response is still there
            assert [line async for line in stream.aiter_lines() if line.startswith("data: {")] == [answer[-2]]


async def test_a_resumed_stream_ends_with_its_session() -> None:
    async with session() as (http, url), resumed(http, url, {"name": "wait", "arguments": {}}) as stream:
        await http.delete(url)
        assert not [line async for line in stream.aiter_lines() if line.startswith("data: {")]


RESPONSE = JSONRPCResponse(jsonrpc="2.0", id=1, result={})


def message(text: str) -> JSONRPCMessage:
    return JSONRPCNotification(jsonrpc="2.0", method="m", params={"text": text})


async def replayed(kept: RecentEvents, last: str, then: Callable[[], Awaitable[object]] | None = None) -> list[str]:
    """The ids of a resumed stream's events, until it ends; after the first one, something else happens meanwhile."""
    found: list[str] = []

    async def take(event: EventMessage) -> None:
        found.append(event.event_id or "")
        if then is not None and len(found) == 1:
            await then()

    with anyio.fail_after(60):
        await kept.replay_events_after(last, take)
    return found


async def test_events_are_bounded_in_number() -> None:
    kept = RecentEvents(4, 10_000)
    for number in range(5):
        await kept.store_event("a" if number % 2 else "b", message(str(number)))
    await kept.store_event("b", RESPONSE)
    assert await replayed(kept, "3") == ["5", "6"]
    assert await replayed(kept, "2") == []
    assert await replayed(kept, "6") == []  # after the response


async def test_events_are_bounded_in_bytes() -> None:
    kept = RecentEvents(100, 10_000)
    for _ in range(5):
        await kept.store_event("a", message("x" * 3000))
    await kept.store_event("a", RESPONSE)
    assert await replayed(kept, "3") == ["4", "5", "6"]
    assert await replayed(kept, "2") == []
    await kept.store_event("a", message("x" * 11_000))
    assert await replayed(kept, "5") == []
    await kept.store_event("a", None)
    await kept.store_event("a", RESPONSE)
    assert await replayed(kept, "8") == ["9"]


async def test_a_resumed_stream_has_what_is_stored_while_it_is_replayed() -> None:
    kept = RecentEvents(10, 10_000)
    for text in "ab":
        await kept.store_event("a", message(text))
    assert await replayed(kept, "1", lambda: kept.store_event("a", RESPONSE)) == ["2", "3"]


async def test_events_that_are_closed_end_what_reads_them() -> None:
    kept = RecentEvents(10, 10_000)
    for text in "ab":
        await kept.store_event("a", message(text))

    async def end() -> None:
        kept.close()

    assert await replayed(kept, "1", end) == ["2"]


async def test_a_resumed_stream_ends_where_its_reader_is_slower_than_what_is_kept() -> None:
    kept = RecentEvents(3, 10_000)
    for text in "ab":
        await kept.store_event("a", message(text))

    async def flood() -> None:
        for _ in range(4):
            await kept.store_event("b", message("more"))

    assert await replayed(kept, "1", flood) == ["2"]


async def test_a_stream_that_is_resumed_once_more_has_one_reader() -> None:
    kept = RecentEvents(10, 10_000)
    for text in "ab":
        await kept.store_event("a", message(text))
    second: list[str] = []

    async def again() -> None:
        async def finish() -> None:
            await kept.store_event("a", RESPONSE)

        second.extend(await replayed(kept, "1", finish))

    assert await replayed(kept, "1", again) == ["2"]
    assert second == ["2", "3"]
