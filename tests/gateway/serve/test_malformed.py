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
from served import RawClient, served

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


def call(value: bytes = b'"plum"', **more: Any) -> bytes:
    body = json.dumps(message(2, "tools/call", name="put", arguments={"text": "VALUE"}, **more)).encode()
    return body.replace(b'"VALUE"', value)


LONG, HALF, NOT_UTF_8 = b"9" * 5000, rb'"\ud800"', b'"\xff"'
NO_REQUESTS = [
    *(call(_meta=meta) for meta in ("ab", 5, [1])),
    *(call(value) for value in (LONG, HALF, NOT_UTF_8)),
    *(b'[{"method": "tools/call"}]', b'"tools/call"', b"[]", b"5", b"", b" ", b"[" * 5000, b'{"a":' * 5000),
    *(b'{"jsonrpc":"2.0","method":5}', b'{"jsonrpc":"2.0","result":{}}', b'{"jsonrpc":"2.0","id":2,"error":"no"}'),
]


@pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
async def test_what_is_no_request_ends_alone_and_reaches_no_server(mini: Entries, config: Config, era: str) -> None:
    headers = {**HEADERS, "mcp-protocol-version": era}
    async with served(config(store=mini("put", "get"))) as running:
        trainer, client = RawClient(running.url), RawClient(running.url + "/one")
        lease = await trainer.open("another")
        if era == "2025-11-25":
            opened = await client.post(message(1, "initialize", **BEGIN), **headers)
            headers["mcp-session-id"] = opened.headers["mcp-session-id"]
        else:
            headers |= {"mcp-method": "tools/call", "mcp-name": "put"}
        with anyio.fail_after(60):
            for body in NO_REQUESTS:
                answer = await client.post(body, **headers)
                assert answer.status_code == 400 or '"error"' in answer.text, body[:100]
            async with Client(client.url, mode="legacy") as user:
                assert (await user.call_tool("get", {})).content[0].text == "nothing"
            kept = await trainer.ask("tools/call", {"name": "get", "arguments": {}}, lease=lease, call="1")
            assert kept["result"]["content"][0]["text"] == "nothing"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (LONG, "an integer has more than 4000 digits"),
        (HALF, "a text has half a surrogate pair"),
        (NOT_UTF_8, "a text is not UTF-8"),
    ],
)
async def test_a_leases_call_that_could_only_be_sent_altered_is_refused(
    mini: Entries, config: Config, value: bytes, problem: str
) -> None:
    async with served(config(store=mini("put", "get"))) as running:
        client = RawClient(running.url)
        meta = {"mcp-rollout/lease": await client.open("a"), "mcp-rollout/call": "1"}
        refused = (await client.post(call(value, _meta=meta))).json()
    assert refused == {"jsonrpc": "2.0", "id": 2, "error": {"code": -32602, "message": problem}}


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


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_result_of_a_wrong_shape_ends_its_request_alone(mode: str) -> None:
    entry = {"command": sys.executable, "args": ["-I", "-S", SERVER, "old", "odd"], "required": True}
    async with served(GatewayConfig.model_validate({"servers": {"a": {**entry, "scope": "process"}}})) as running:
        client = RawClient(running.url)
        lease = await client.open("another")
        with anyio.fail_after(60):
            async with Client(running.url, mode=mode, cache=None) as user:
                for asking in (user.call_tool("ask_twice", {}), user.list_prompts()):
                    with pytest.raises((MCPError, ValueError)):
                        await asking
        renewed = await client.ask("mcp-rollout/leases/renew", {"leases": [lease]})
        assert renewed["result"]["lost"] == []


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
