"""A kit server answers tool calls as the SDK does, byte for byte, on the direct path and off it."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp_types import ElicitResult
from raw_clients import (
    ENVELOPE,
    LEGACY,
    MODERN,
    Answer,
    RawHttp,
    RawStdio,
    call,
    raw_http,
    raw_server,
    raw_stdio,
    request,
)

pytestmark = pytest.mark.anyio

SERVER = str(Path(__file__).parents[1] / "support" / "both_paths_server.py")
FIXED: list[tuple[str, dict[str, Any]]] = [
    ("add", {"a": 1}),
    ("add", {"a": "x"}),
    ("add", {"a": "5", "more": 1}),
    ("nope", {}),
    ("point", {"at": {"x": 1e-7, "the-label": "q"}}),
    ("point", {"at": '{"x": 2}'}),
    ("point", {"at": {"x": 1}, "kind": "z"}),
    ("anything", {"value": {"a": [1, None, 2.5, 1e16, True, "é\u2028\U0001f600"], "": {}}}),
    ("anything", {"value": 1 << 80}),
    ("listing", {"texts": ["a", "b"]}),
    ("listing", {"texts": '["a"]'}),
    ("unstructured", {"text": "é"}),
    ("image", {}),
    ("own_result", {}),
    ("own_result", {"reward": 1.0}),
    ("own_result", {"error": True}),
    *(("fails", {"how": how}) for how in ("tool", "protocol", "params", "otherwise")),
    ("mismatch", {}),
    ("reports", {"steps": 2}),
    ("mine", {}),
    ("reset", {"task": "t", "seed": 1}),
    ("mine", {}),
    ("release", {}),
    ("mine", {}),
]
METAS: list[dict[str, Any]] = [
    {},
    {"progressToken": 7},
    {"progressToken": "p"},
    {"progressToken": True},
    {"progressToken": None},
    {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
    {"io.modelcontextprotocol/logLevel": "info"},
    {"io.modelcontextprotocol/logLevel": "loud"},
    {"io.modelcontextprotocol/other": 1},
    {"mcp-rollout/trajectory": 5},
    {"any": {"thing": [1]}},
]
ODD_PARAMS: list[dict[str, Any]] = [
    {},
    {"name": 5},
    {"name": "add", "arguments": None},
    {"name": "add", "arguments": [1]},
    {"name": "add", "arguments": {"a": 1}, "requestState": "forged"},
    {"name": "add", "arguments": {"a": 1}, "inputResponses": {}},
    {"name": "add", "arguments": {"a": 1}, "other": 1},
]


def values(rng: random.Random, depth: int = 3) -> Any:
    """Any JSON value."""
    kinds = [
        None,
        True,
        rng.randint(-9, 1 << 70),
        rng.uniform(-1e20, 1e20),
        rng.random() / 1e9,
        "".join(rng.sample('aé"\\\n\u2028😀', 3)),
    ]
    if depth and rng.random() < 0.5:
        if rng.random() < 0.5:
            return [values(rng, depth - 1) for _ in range(rng.randint(0, 4))]
        return {str(rng.random()): values(rng, depth - 1) for _ in range(rng.randint(0, 4))}
    return rng.choice(kinds)


def plays(era: str, seed: int) -> list[dict[str, Any]]:
    """Seeded requests, ordinary and odd, with ids 0, 1, 2, ..."""
    rng = random.Random(seed)
    drawn = [("anything", {"value": values(rng)}) for _ in range(20)]
    drawn += [("add", {"a": values(rng), "b": values(rng)}) for _ in range(20)]
    drawn += [("point", {"at": {"x": values(rng, 1), "the-label": values(rng, 1)}}) for _ in range(10)]
    rng.shuffle(drawn)
    messages = [call(0, name, arguments, era) for name, arguments in [*FIXED, *drawn]]
    messages += [call(0, "add", {"a": 1}, era, **meta) for meta in METAS]
    levels = ({}, {"io.modelcontextprotocol/logLevel": "info"}, {"io.modelcontextprotocol/logLevel": "error"})
    messages += [call(0, "logs", {}, era, **level) for level in levels]
    for params in ODD_PARAMS:
        meta = {"_meta": ENVELOPE} if era == MODERN else {}
        messages.append(request(0, "tools/call", {**meta, **params}))
    if era == MODERN:
        messages.append(request(0, "tools/call", {"name": "add", "arguments": {"a": 1}}))
        for key in ENVELOPE:
            for value in ("missing", "2026-01-01", 5, None, {"name": 5}):
                meta = {**ENVELOPE, key: value}
                if value == "missing":
                    del meta[key]
                messages.append(request(0, "tools/call", {"name": "add", "arguments": {"a": 1}, "_meta": meta}))
    else:
        messages.append(call(0, "add", {"a": 1}, MODERN))
    return [{**message, "id": number} for number, message in enumerate(messages)]


async def answered(client: RawStdio, message: dict[str, Any]) -> list[bytes]:
    await client.send(message)
    return await client.until(message["id"])


async def direct_calls(client: RawStdio) -> int:
    """How many calls were direct since the server's start, this one included."""
    (answer,) = await answered(client, call("count", "how_many_were_direct", {}, client.era))
    return said(answer)


@pytest.fixture(scope="module", params=[LEGACY, MODERN])
async def stdio(request: pytest.FixtureRequest) -> AsyncIterator[RawStdio]:
    async with raw_stdio([SERVER, "kit"], request.param) as client:
        yield client


async def test_answers_over_stdio_are_the_sdks_byte_for_byte(stdio: RawStdio) -> None:
    messages, before = plays(stdio.era, seed=20), await direct_calls(stdio)
    async with raw_stdio([SERVER, "sdk"], stdio.era) as theirs:
        for message in messages:
            with anyio.fail_after(30):
                assert await answered(stdio, message) == await answered(theirs, message), message
        assert await direct_calls(stdio) - before > 0.7 * len(messages)
        assert await direct_calls(theirs) == 0


@pytest.fixture(scope="module")
async def kit() -> AsyncIterator[int]:
    async with raw_server([SERVER, "kit"]) as port:
        yield port


@pytest.fixture(scope="module")
async def sdk() -> AsyncIterator[int]:
    async with raw_server([SERVER, "sdk"]) as port:
        yield port


@asynccontextmanager
async def opened(port: int) -> AsyncIterator[RawHttp]:
    """A connection on which the first request, which the SDK answers, has been."""
    async with raw_http(port) as client:
        with anyio.fail_after(60):
            await client.ask(request("open", "server/discover", {"_meta": ENVELOPE}))
        yield client


@pytest.fixture
async def ours(kit: int) -> AsyncIterator[RawHttp]:
    async with opened(kit) as client:
        yield client


@pytest.fixture
async def theirs(sdk: int) -> AsyncIterator[RawHttp]:
    async with opened(sdk) as client:
        yield client


async def direct_posts(client: RawHttp) -> int:
    """How many calls were direct since the server's start, this one included."""
    return said((await client.ask(call("count", "how_many_were_direct", {}, MODERN))).body)


async def test_answers_over_http_are_the_sdks_byte_for_byte(ours: RawHttp, theirs: RawHttp) -> None:
    """Requests that the SDK answers and direct ones alternate on one connection."""
    messages, before = plays(MODERN, seed=21), await direct_posts(ours)
    for message in messages:
        with anyio.fail_after(30):
            name = message["params"].get("name")
            headers = {"mcp_name": name if isinstance(name, str) else None}
            assert await ours.ask(message, **headers) == await theirs.ask(message, **headers), message
    assert await direct_posts(ours) - before > 0.6 * len(messages)
    assert await direct_posts(theirs) == 0


async def test_headers_are_checked_as_by_the_sdk(ours: RawHttp, theirs: RawHttp) -> None:
    odd: list[dict[str, str | None]] = [
        {"origin": "http://localhost:3000"},
        {"content_type": "text/plain"},
        {"content_type": None},
        {"accept": "application/json"},
        {"accept": "*/*"},
        {"accept": None},
        {"mcp_name": "other"},
        {"mcp_name": None},
        {"mcp_name": "=?base64?YWRk?="},
        {"mcp_method": "tools/list"},
        {"mcp_method": None},
        {"mcp_protocol_version": "2027-01-01"},
        {"mcp_name": "add\r\nmcp-name: add"},
        {"accept": "text/event-stream\r\naccept: application/json"},
        {"mcp_param_a": "1"},
        {"connection": "keep-alive"},
        {"Mcp_Name": "add", "mcp_name": None},
    ]
    for number, headers in enumerate(odd):
        message = call(number, "add", {"a": 1}, MODERN)
        with anyio.fail_after(30):
            assert await ours.ask(message, **headers) == await theirs.ask(message, **headers), headers
    before = await direct_posts(ours)
    for _ in range(2):  # a refused combination stays refused
        assert (await ours.ask(call(1, "add", {"a": 1}, MODERN), mcp_name="other")).status == 400
    assert await direct_posts(ours) == before + 1


@pytest.mark.parametrize("header", [{"host": "evil.example"}, {"origin": "http://evil.example"}])
async def test_what_the_sdk_refuses_of_pages_ends_at_the_door(
    ours: RawHttp, theirs: RawHttp, header: dict[str, str | None]
) -> None:
    """Before a body is read, so that it ends the connection; with the SDK's status and text."""
    message = call(1, "add", {"a": 1}, MODERN)
    with anyio.fail_after(30):
        own, other = await ours.ask(message, **header), await theirs.ask(message, **header)
        assert own == replace(other, kind="text/plain")
        with pytest.raises((anyio.IncompleteRead, anyio.EndOfStream, anyio.BrokenResourceError)):
            await ours.ask(message)


async def test_a_request_may_arrive_in_any_parts_and_ahead_of_its_turn(ours: RawHttp) -> None:
    with anyio.fail_after(60):
        listing = request("l", "tools/list", {"_meta": ENVELOPE})
        posts = [ours.post(call(number, "add", {"a": number}, MODERN)) for number in range(3)]
        whole = b"".join([posts[0], ours.post(listing), posts[1], posts[2]])
        expected: list[Answer] = []
        for size in (len(whole), 1, 7, 100):
            for start in range(0, len(whole), size):
                await ours.stream.send(whole[start : start + size])
            answers = [await ours.answer() for _ in range(4)]
            assert [json.loads(answer.body)["id"] for answer in answers] == [0, "l", 1, 2]
            assert answers == (expected or answers)
            expected = answers


async def test_what_is_not_plain_http_is_the_sdks(ours: RawHttp) -> None:
    body = json.dumps(call(1, "add", {"a": 1}, MODERN)).encode()
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    with anyio.fail_after(30):
        head = ours.post(call(1, "add", {"a": 1}, MODERN), content_length=None, transfer_encoding="chunked")
        await ours.stream.send(head.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" + chunked)
        assert json.loads((await ours.answer()).body)["result"]["structuredContent"] == {"result": 2}
        await ours.stream.send(ours.post(call(2, "add", {"a": 2}, MODERN), connection="close"))
        assert json.loads((await ours.answer()).body)["result"]["structuredContent"] == {"result": 3}
        with pytest.raises(anyio.EndOfStream):
            await ours.stream.receive()


@pytest.mark.parametrize(
    "broken",
    [
        b"GARBAGE\r\n\r\n",
        b"POST /mcp HTTP/1.1\nhost: x\ncontent-length: 2\n\n{}",
        b"POST /mcp HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
    ],
)
async def test_broken_http_is_refused(kit: int, broken: bytes) -> None:
    async with raw_http(kit) as client:
        with anyio.fail_after(30):
            await client.stream.send(broken)
            assert (await client.received.receive_until(b"\r\n", 1000)).startswith(b"HTTP/1.1 400")


def said(answer: bytes) -> Any:
    return json.loads(answer)["result"]["structuredContent"]["result"]


async def test_a_cancelled_call_ends_and_is_not_answered(stdio: RawStdio) -> None:
    asked, before = call("a", "is_waiting", {"key": "k"}, stdio.era), await direct_calls(stdio)
    with anyio.fail_after(30):
        await stdio.send(call("w", "waits", {"key": "k"}, stdio.era))
        while not said((await answered(stdio, asked))[0]):
            pass
        await stdio.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "w"}})
        # Each line answers the request before it: the cancelled one has no answer.
        while True:
            (line,) = await answered(stdio, asked)
            if not said(line):
                break
        assert len(await answered(stdio, call(3, "add", {"a": 1}, stdio.era))) == 1
        assert await direct_calls(stdio) - before >= 5


async def test_leaving_cancels_a_call_over_http(kit: int, ours: RawHttp) -> None:
    asked = call("a", "is_waiting", {"key": "k"}, MODERN)
    with anyio.fail_after(30):
        async with raw_http(kit) as leaving:
            await leaving.stream.send(leaving.post(call(1, "waits", {"key": "k"}, MODERN)))
            while not said((await ours.ask(asked)).body):
                pass
        while said((await ours.ask(asked)).body):
            pass


@pytest.mark.parametrize("era", [LEGACY, MODERN])
@pytest.mark.parametrize("side", ["kit", "sdk"])
async def test_the_end_of_input_ends_calls_with_an_error(era: str, side: str) -> None:
    async with raw_stdio([SERVER, side], era) as client:
        with anyio.fail_after(60):
            await client.send(call("w", "waits", {"key": "k"}, era))
            await answered(client, call(1, "add", {"a": 1}, era))
            assert client.process.stdin is not None
            await client.process.stdin.aclose()
            assert json.loads(await client.line()) == {
                "jsonrpc": "2.0",
                "id": "w",
                "error": {"code": -32000, "message": "Connection closed"},
            }
            assert await client.process.wait() == 0


UNASKED = [("cancelled", "the tool raised CancelledError"), ("abnormal", "the tool raised Abnormal")]


@pytest.mark.parametrize(("how", "message"), UNASKED)
async def test_a_call_that_its_tool_cancels_is_answered_over_stdio(stdio: RawStdio, how: str, message: str) -> None:
    with anyio.fail_after(30):
        before = await direct_calls(stdio)
        (line,) = await answered(stdio, call("f", "fails", {"how": how}, stdio.era))
        assert json.loads(line)["error"] == {"code": -32603, "message": message}
        assert len(await answered(stdio, call(3, "add", {"a": 1}, stdio.era))) == 1
        assert await direct_calls(stdio) == before + 3


@pytest.mark.parametrize(("how", "message"), UNASKED)
async def test_a_call_that_its_tool_cancels_is_answered_over_http(ours: RawHttp, how: str, message: str) -> None:
    with anyio.fail_after(30):
        before = await direct_posts(ours)
        answer = await ours.ask(call("f", "fails", {"how": how}, MODERN))
        assert json.loads(answer.body)["error"] == {"code": -32603, "message": message}
        assert await direct_posts(ours) == before + 2


async def test_prints_do_not_reach_the_client(stdio: RawStdio) -> None:
    with anyio.fail_after(30):
        (answer,) = await answered(stdio, call(1, "prints", {"text": "{not json"}, stdio.era))
        assert json.loads(answer)["result"]["structuredContent"] == {"result": ""}


async def test_long_lines_and_results_pass(stdio: RawStdio) -> None:
    text = "é" * 300_000
    with anyio.fail_after(60):
        for number in range(3):
            (answer,) = await answered(stdio, call(number, "unstructured", {"text": text}, stdio.era))
            assert json.loads(answer)["result"]["content"][0]["text"] == text


async def test_calls_go_on_after_a_client_has_left_megabytes_of_answers_unread(stdio: RawStdio) -> None:
    """Input pauses while more than a megabyte waits to be read, and resumes however small the pieces are that leave."""
    large = [call(number, "repeats", {"text": "y", "times": 200_000}, stdio.era) for number in range(60)]
    with anyio.fail_after(60):
        await stdio.send(*large[:-1])
        await stdio.line()  # the server answers the others, which are not read yet
        await stdio.send(large[-1])
        for _ in large[1:]:
            await stdio.line()
        await answered(stdio, call("later", "add", {"a": 1}, stdio.era))


PINGING = f"""
import sys
sys.path[:0] = [{str(Path(SERVER).parent)!r}]
import both_paths_server
import mcp_rollout.mcp_servers.kit.direct.http as http
http.PING_S, http._SWEEP_S = 0.0, 0.01
both_paths_server.main(both_paths_server.create_server(), arguments=["--http", sys.argv[1]])
"""


async def test_a_silent_call_becomes_a_stream_with_pings() -> None:
    async with raw_server(["-c", PINGING]) as port, raw_http(port) as client:
        with anyio.fail_after(60):
            await client.ask(request("open", "server/discover", {"_meta": ENVELOPE}))
            await client.stream.send(client.post(call(1, "waits", {"key": "k"}, MODERN)))
            head = await client.received.receive_until(b"\r\n\r\n", 1 << 16)
            assert b"text/event-stream" in head and b"chunked" in head
            for _ in range(2):
                assert await client.received.receive_exactly(15) == b"a\r\n: ping\r\n\r\n\r\n"


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_tool_may_ask_the_client(mode: Any, kit: int) -> None:
    """By a request within the call (handshake era), and by a round (2026-07-28), over stdio and HTTP."""

    async def answer(context: Any, params: Any) -> ElicitResult:
        assert params.message == "Who?"
        return ElicitResult(action="accept", content={"name": "Ann"})

    async def use(target: Any) -> None:
        with anyio.fail_after(60):
            async with Client(target, mode=mode, elicitation_callback=answer) as client:
                await client.list_tools()
                tool = "asks" if mode == "legacy" else "rounds"
                result = await client.call_tool(tool, {})
                assert not result.is_error, result.content
                assert result.structured_content == {"result": EXPECTED[tool]}

    await use(StdioServerParameters(command=sys.executable, args=[SERVER, "kit"], env=dict(os.environ)))
    await use(f"http://127.0.0.1:{kit}/mcp")


EXPECTED = {"asks": "accept name='Ann'", "rounds": "s ['q']"}


async def test_the_request_of_a_call_has_its_headers(ours: RawHttp, theirs: RawHttp) -> None:
    for name in ("x-note", "mcp-method", "none"):
        message = call(1, "headers", {"name": name}, MODERN)
        assert await ours.ask(message, x_note="é") == await theirs.ask(message, x_note="é")
