"""Requests and results of a wrong shape end one request of an MCP client, and neither the server nor its leases."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client, MCPError
from mcp.server.mcpserver import MCPServer
from served import RawClient, served
from serving import serving

from mcp_rollout import GatewayConfig
from mcp_rollout.gateway.errors import ServerUnavailable
from mcp_rollout.gateway.serve.bearers import Bearer
from mcp_rollout.gateway.serve.config import TokenLimits
from mcp_rollout.gateway.serve.served_lease import LeasedCalls

Entries = Callable[..., dict[str, Any]]
Config = Callable[..., GatewayConfig]
pytestmark = pytest.mark.anyio
HEADERS = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25"}
BEGIN = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
SERVER = str(Path(__file__).parents[2] / "support" / "one_era_server.py")


def message(number: int, method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


@pytest.mark.parametrize("meta", ["ab", 5, [1]])
@pytest.mark.parametrize("address", ["", "/one"])
async def test_a_call_whose_meta_is_no_object_is_refused_and_harms_no_other(
    mini: Entries, config: Config, address: str, meta: Any
) -> None:
    async with served(config(store=mini("get"))) as running:
        trainer, client = RawClient(running.url), RawClient(running.url + address)
        lease = await trainer.open("another")
        with anyio.fail_after(60):
            opened = await client.post(message(1, "initialize", **BEGIN), **HEADERS)
            session = {**HEADERS, "mcp-session-id": opened.headers["mcp-session-id"]}
            refused = await client.post(message(2, "tools/call", name="get", arguments={}, _meta=meta), **session)
            assert refused.json()["error"] == {"code": -32602, "message": "_meta must be an object"}
            called = await client.post(message(3, "tools/call", name="get", arguments={}), **session)
            assert called.json()["result"]["content"][0]["text"] == "nothing"
            kept = await trainer.ask("tools/call", {"name": "get", "arguments": {}}, lease=lease, call="1")
            assert kept["result"]["content"][0]["text"] == "nothing"


@pytest.mark.parametrize("session", [True, False])
@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (b"9" * 5000, "an integer has more than 4000 digits"),
        (rb'"\ud800"', "a text has half a surrogate pair"),
        (b'"\xff"', "a text is not UTF-8"),
    ],
)
async def test_a_call_that_could_only_be_sent_altered_is_refused(
    mini: Entries, config: Config, value: bytes, problem: str, session: bool
) -> None:
    async with served(config(store=mini("put", "get"))) as running:
        client, params = RawClient(running.url), {"name": "put", "arguments": {"text": "VALUE"}}
        with anyio.fail_after(60):
            if session:
                opened = await client.post(message(1, "initialize", **BEGIN), **HEADERS)
                headers = {**HEADERS, "mcp-session-id": opened.headers["mcp-session-id"]}
            else:
                params["_meta"] = {"mcp-rollout/lease": await client.open("a"), "mcp-rollout/call": "1"}
                headers = dict[str, str]()
            body = json.dumps(message(2, "tools/call", **params)).encode().replace(b'"VALUE"', value)
            refused = (await client.post(body, **headers)).json()
    assert refused == {"jsonrpc": "2.0", "id": 2, "error": {"code": -32602, "message": problem}}


@pytest.mark.parametrize("body", [b'[{"method": "tools/call"}]', b'"tools/call"', b"[]", b"5", b"", b" "])
async def test_what_is_no_object_is_refused_in_words(mini: Entries, config: Config, body: bytes) -> None:
    async with served(config(store=mini("get"))) as running:
        client = RawClient(running.url)
        opened = await client.post(message(1, "initialize", **BEGIN), **HEADERS)
        refused = await client.post(body, **HEADERS, **{"mcp-session-id": opened.headers["mcp-session-id"]})
    assert refused.status_code == 400
    assert "is not one JSON object, which every request is" in refused.json()["error"]["message"]


@pytest.mark.parametrize("session", [True, False])
@pytest.mark.parametrize("given", [{"method": 5}, {"result": {}}, {"id": 2, "error": "no"}, {}])
async def test_an_object_that_is_no_message_is_refused_in_words(
    mini: Entries, config: Config, given: dict[str, Any], session: bool
) -> None:
    async with served(config(store=mini("get"))) as running:
        client = RawClient(running.url)
        opened = await client.post(message(1, "initialize", **BEGIN), **HEADERS)
        known = {"mcp-session-id": opened.headers["mcp-session-id"]} if session else {}
        refused = await client.post({"jsonrpc": "2.0", **given}, **HEADERS, **known)
    assert refused.status_code == 400
    problem = "the body is not a JSON-RPC request, notification or response"
    assert refused.json()["error"] == {"code": -32600, "message": problem}


@pytest.mark.parametrize("wait", ["NaN", "Infinity", "-Infinity", "1e999", "1" + "0" * 400])
async def test_a_wait_that_is_not_finite_leases_nothing_and_its_bearer_is_in_no_log(
    mini: Entries, config: Config, wait: str, capsys: pytest.CaptureFixture[str]
) -> None:
    token = "a token of sixteen and more"
    async with served(config(store=mini("get")), tokens=(token,)) as running, httpx2.AsyncClient() as http:
        opening = message(1, "mcp-rollout/leases/open", key="k", trajectory="t", seed=0)
        body = json.dumps(opening).replace('"seed": 0', f'"seed": 0, "wait_s": {wait}')
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        with anyio.fail_after(60):
            answer = await http.post(running.url, content=body, headers=headers)
        assert running.leases == 0
    assert answer.status_code == 200
    assert answer.json()["error"] == {"code": -32602, "message": "wait_s must be a finite number"}
    assert token not in "".join(capsys.readouterr())


def two_odd_servers() -> GatewayConfig:
    entry = {"command": sys.executable, "args": ["-I", "-S", SERVER, "old", "odd"], "required": True}
    return GatewayConfig.model_validate({"servers": {name: {**entry, "scope": "process"} for name in ("a", "b")}})


@pytest.mark.parametrize(("mode", "asked"), [("legacy", "call"), ("legacy", "list"), ("2026-07-28", "list")])
async def test_a_result_of_a_wrong_shape_ends_its_request_alone(mode: str, asked: str) -> None:
    async with served(two_odd_servers()) as running:
        client = RawClient(running.url)
        lease = await client.open("another")
        with anyio.fail_after(60):
            async with Client(running.url, mode=mode, cache=None) as user:
                with pytest.raises(MCPError):
                    await (user.call_tool("a__ask_twice", {}) if asked == "call" else user.list_prompts())
        renewed = await client.ask("mcp-rollout/leases/renew", {"leases": [lease]})
        assert renewed["result"]["lost"] == []


@pytest.mark.parametrize("first", ["direct", "in a stream", "a prompt's"])
async def test_an_id_that_is_posted_again_while_under_way_is_refused_and_the_first_is_answered(first: str) -> None:
    server, begun, released = MCPServer("waits", log_level="ERROR"), anyio.Event(), anyio.Event()

    async def waits() -> str:
        """Wait for the other request."""
        begun.set()
        await released.wait()
        return "done"

    server.tool()(waits)
    server.prompt()(waits)
    answers: list[httpx2.Response] = []
    async with serving(server, "http-handshake") as entry:
        made = GatewayConfig.model_validate({"servers": {"waits": entry}})
        async with served(made, stream_after_s=0.01 if first == "in a stream" else 20) as running:
            client = RawClient(running.url)
            opened = await client.post(message(1, "initialize", **BEGIN), **HEADERS)
            session = {**HEADERS, "mcp-session-id": opened.headers["mcp-session-id"]}
            kind = "prompts/get" if "prompt" in first else "tools/call"
            asked = message(2, kind, name="waits", arguments={})

            async def post() -> None:
                answers.append(await client.post(asked, **session))

            with anyio.fail_after(60):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(post)
                    await begun.wait()
                    for repeated in (asked, {**asked, "id": "2"}):
                        assert (await client.post(repeated, **session)).status_code == 400
                    released.set()
                assert '"done"' in answers[0].text and answers[0].status_code == 200
                # Once it is answered, the id is free again.
                assert '"done"' in (await client.post(asked, **session)).text


async def test_keys_of_calls_that_never_arrive_are_bounded() -> None:
    calls = LeasedCalls(Bearer("a", TokenLimits()))

    async def execute() -> bytes:
        return b"ran"

    for number in range(5000):
        calls.cancel(str(number))
    with pytest.raises(ServerUnavailable, match="cancelled before it arrived"):
        await calls.once("4999", ("s", "t"), execute)
    assert await calls.once("0", ("s", "t"), execute) == b"ran"
    assert len(calls._calls) <= 1001  # pyright: ignore[reportPrivateUsage]
