"""Over the wire: what a policy, a wrong token and another's handle reach; answers to limits and bad requests."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2
import mcp_types as mcp
import pytest
from mcp import Client, MCPError
from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel, ValidationError
from served import OTHER_TOKEN, TOKEN, RawClient, at, client, remote, served
from serving import serving

from mcp_rollout import Gateway, GatewayConfig
from mcp_rollout.gateway.errors import ConfigError, HarnessError, HostRefused
from mcp_rollout.gateway.serve.config import ServeConfig, read_tokens
from mcp_rollout.gateway.types import CallFault, Role

Entries = Callable[..., dict[str, Any]]
Config = Callable[..., GatewayConfig]
pytestmark = pytest.mark.anyio
TOKENS = (TOKEN, OTHER_TOKEN)


def code(answer: dict[str, Any]) -> str:
    return answer["error"]["data"]["mcp-rollout/failure"]["code"]


async def test_a_wrong_token_reaches_nothing(mini: Entries, config: Config) -> None:
    made = config(store=mini("put", "get", "reset"))
    async with served(made, tokens=TOKENS) as running:
        own = RawClient(running.url, TOKEN)
        handle = await own.open("a")
        for wrong in (
            RawClient(running.url),
            RawClient(running.url, TOKEN + "x"),
            RawClient(running.url, OTHER_TOKEN[:-1]),
        ):
            for method in ("server/discover", "mcp-rollout/leases/catalogue", "tools/list", "tools/call"):
                meta = {"mcp-rollout/lease": handle, "mcp-rollout/call": "1"}
                params = {"name": "get", "arguments": {}, "_meta": meta}
                answer = await wrong.post({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
                assert answer.status_code == 401 and "result" not in answer.json()
            assert (await wrong.post({}, **{"authorization": f"Basic {TOKEN}"})).status_code == 401
        with pytest.raises(HostRefused):
            async with Gateway(made, hosts=at(running.url, "another token altogether")):
                pass


@pytest.mark.parametrize("name", ["authorization", "mcp-session-id", "mcp-protocol-version"])
async def test_a_request_that_says_twice_who_asks_or_where_is_refused(mini: Entries, config: Config, name: str) -> None:
    given = [("content-type", "application/json"), ("authorization", f"Bearer {TOKEN}"), (name, f"Bearer {TOKEN}")]
    headers = [*given, (name, "another")] if name != "authorization" else given
    async with served(config(store=mini("get")), tokens=TOKENS) as running, httpx2.AsyncClient() as http:
        for path in ("", "/one"):
            answer = await http.post(running.url + path, content=b"{}", headers=headers)
            assert answer.status_code == 400 and "repeated" in answer.text


async def test_anothers_handle_reaches_neither_the_world_nor_a_harness_tool(mini: Entries, config: Config) -> None:
    async with served(config(store=mini("put", "get", "reset", scope="session")), tokens=TOKENS) as running:
        own, other = RawClient(running.url, TOKEN), RawClient(running.url, OTHER_TOKEN)
        handle = await own.open("a")
        await own.ask("tools/call", {"name": "put", "arguments": {"text": "plum"}}, lease=handle, call="1")
        for name in ("get", "put", "reset"):
            answer = await other.ask("tools/call", {"name": name, "arguments": {}}, lease=handle, call="x")
            assert code(answer) == "world_lost"
        for method in ("check", "cancel"):
            assert code(await other.ask(f"mcp-rollout/leases/{method}", lease=handle, call="1")) == "world_lost"
        assert (await other.ask("mcp-rollout/leases/renew", {"leases": [handle]}))["result"]["lost"] == [handle]
        await other.ask("mcp-rollout/leases/close", lease=handle)
        near = handle[:-1] + ("b" if handle.endswith("a") else "a")
        guessed = await own.ask("tools/call", {"name": "get", "arguments": {}}, lease=near, call="2")
        assert code(guessed) == "world_lost"
        found = await own.ask("tools/call", {"name": "get", "arguments": {}}, lease=handle, call="3")
        assert found["result"]["content"][0]["text"] == "plum"


async def test_a_trajectorys_id_is_leased_once_at_a_time(mini: Entries, config: Config) -> None:
    """Shared servers keep worlds apart by it. Another bearer that names it has a trajectory of its own."""
    async with served(config(store=mini("get")), tokens=TOKENS) as running:
        await RawClient(running.url, TOKEN).open("a")
        params = {"key": "k", "trajectory": "a", "seed": 1}
        answer = await RawClient(running.url, TOKEN).ask("mcp-rollout/leases/open", params)
        assert code(answer) == "server_unavailable"
        assert await RawClient(running.url, OTHER_TOKEN).open("a")


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_clients_token_neither_leases_nor_resets_nor_scores_nor_reads_the_catalogue(
    mini: Entries, config: Config, mode: str
) -> None:
    made = config(store=mini("put", "get", "reset", "score", scope="session"))
    async with served(made, tokens=(TOKEN,), client_tokens=(OTHER_TOKEN,)) as running:
        handle = await RawClient(running.url, TOKEN).open("a")
        raw = RawClient(running.url, OTHER_TOKEN)
        for method in ("catalogue", "open", "renew", "check", "cancel", "close"):
            params = {"key": "k", "trajectory": "k", "seed": 1, "_meta": {"mcp-rollout/lease": handle}}
            message = {"jsonrpc": "2.0", "id": 1, "method": f"mcp-rollout/leases/{method}", "params": params}
            assert (await raw.post(message)).status_code == 403
            escaped = json.dumps(message).replace("mcp-rollout/lease", "mcp-rollout\\/lease").encode()
            assert "result" not in (await raw.post(escaped, accept="application/json, text/event-stream")).text
        for tool in ("get", "reset", "score"):
            params = {"name": tool, "arguments": {}, "_meta": {"mcp-rollout/lease": handle, "mcp-rollout/call": tool}}
            called = await raw.post({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
            assert called.status_code == 403
        async with httpx2.AsyncClient(headers=raw.headers) as http:
            assert (await http.get(running.url.replace("/mcp", "/metrics"))).status_code == 405
        with pytest.raises(HostRefused):
            async with Gateway(made, hosts=at(running.url, OTHER_TOKEN)):
                pass
        async with client(running.url, OTHER_TOKEN, mode) as user:
            assert {tool.name for tool in (await user.list_tools()).tools} == {"put", "get"}
            assert not (user.server_capabilities.extensions or user.server_capabilities.experimental)
            assert not (await user.call_tool("put", {"text": "plum"})).is_error
            for tool in ("reset", "score"):
                assert (await user.call_tool(tool, {})).is_error
        assert running.leases  # the trainer's goes on


async def test_a_policy_reaches_no_harness_tool(mini: Entries, config: Config) -> None:
    async with remote(config(store=mini("get", "reset", "score")), tokens=TOKENS) as (gateway, running):
        async with gateway.lease(trajectory="a", task="t", seed=1) as session:
            assert session.has(Role.RESET, "store")
            for guess in ("reset", "score", "mcp-rollout/leases/open", "store/reset"):
                assert (await session.call(guess, {})).fault is CallFault.UNKNOWN_TOOL
            with pytest.raises(HarnessError):
                await session.invoke(Role.REPLY, {}, server="store")
        # Without a lease no token opens a way to them either.
        client = RawClient(running.url, TOKEN)
        assert "result" not in await client.ask("tools/call", {"name": "reset", "arguments": {"task": "t", "seed": 1}})


async def test_the_same_key_opens_one_lease_and_executes_one_call(mini: Entries, config: Config) -> None:
    async with served(config(store=mini("put", "resets", "reset", scope="session"))) as running:
        client = RawClient(running.url)
        assert await client.open("a") == await client.open("a")
        assert running.leases == 1
        handle = await client.open("a")
        first = await client.ask("tools/call", {"name": "put", "arguments": {"text": "x"}}, lease=handle, call="k")
        again = await client.ask("tools/call", {"name": "put", "arguments": {"text": "y"}}, lease=handle, call="k")
        assert first == again
        other = await client.post(
            {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "tools/call",
                "params": {"name": "reset", "_meta": {"mcp-rollout/lease": handle, "mcp-rollout/call": "k"}},
            }
        )
        assert other.status_code == 400


@pytest.mark.parametrize(
    "headers",
    [
        *({"host": host} for host in ("evil.example", "localhost:80:evil", "localhost:80@evil", "localhost/x", "")),
        *({"origin": origin} for origin in ("https://evil.example", "http://localhost:80:evil", "http://localhost/")),
    ],
)
async def test_pages_of_other_sites_are_refused(mini: Entries, config: Config, headers: dict[str, str]) -> None:
    async with served(config(store=mini("get"))) as running:
        message = {"jsonrpc": "2.0", "id": 1, "method": "mcp-rollout/leases/renew", "params": {"leases": []}}
        assert (await RawClient(running.url).post(message, **headers)).status_code == 403
        assert (await RawClient(running.url).post(message, origin="http://localhost:3000")).status_code == 200


async def test_limits_refuse_and_name_themselves(mini: Entries, config: Config) -> None:
    limits = {"leases": 1, "waiting": 1}
    async with served(config(store=mini("get")), limits=limits, max_request_bytes=1024) as running:
        client = RawClient(running.url)
        handle = await client.open("a")
        waiting = await client.ask("mcp-rollout/leases/open", {"key": "b", "trajectory": "b", "seed": 1, "wait_s": 0})
        assert waiting["result"]["granted"] is False
        params = {"key": "c", "trajectory": "c", "seed": 1}
        refused = await client.post({"jsonrpc": "2.0", "id": 1, "method": "mcp-rollout/leases/open", "params": params})
        assert refused.status_code == 429 and "limits.waiting" in refused.text
        assert (await client.post(b" " * 2000)).status_code == 413
        await client.ask("mcp-rollout/leases/close", lease=handle)
        granted = await client.ask("mcp-rollout/leases/open", {"key": "b", "trajectory": "b", "seed": 1, "wait_s": 9})
        assert granted["result"]["granted"] is True


async def held_bytes(url: str) -> int:
    """Of the first bearer."""
    async with httpx2.AsyncClient(headers={"authorization": f"Bearer {TOKEN}"}) as http:
        found = (await http.get(url.replace("/mcp", "/metrics"))).text
    return int(found.partition('mcp_rollout_body_bytes{bearer="0"} ')[2].partition("\n")[0])


async def test_long_requests_of_one_bearer_are_bounded_together_and_short_ones_pass(
    mini: Entries, config: Config
) -> None:
    asked = {"jsonrpc": "2.0", "id": 1, "method": "mcp-rollout/leases/renew", "params": {"leases": []}}
    short = json.dumps(asked).encode()
    long, half = short + b" " * 600_000, 300_000
    async with served(config(store=mini("get")), limits={"body_bytes": 500_000}, tokens=TOKENS) as running:
        own, other, address = RawClient(running.url, TOKEN), RawClient(running.url, OTHER_TOKEN), urlsplit(running.url)
        lines = ["POST /mcp HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {TOKEN}"]
        head = "\r\n".join([*lines, f"Content-Length: {len(long)}", "", ""])
        with anyio.fail_after(60):
            async with await anyio.connect_tcp(address.hostname or "", address.port or 0) as slow:
                await slow.send(head.encode() + long[:half])
                while await held_bytes(running.url) != half:
                    await anyio.lowlevel.checkpoint()
                refused = await own.post(long)
                assert refused.status_code == 429 and "300000 bytes (limits.body_bytes)" in refused.text
                assert (await own.post(short)).status_code == (await other.post(long)).status_code == 200
                # Alone, also one beyond the bound is answered.
                await slow.send(long[half:])
                assert (await slow.receive()).startswith(b"HTTP/1.1 200 ")
            assert await held_bytes(running.url) == 0
            async with await anyio.connect_tcp(address.hostname or "", address.port or 0) as lost:
                await lost.send(head.encode() + long[:half])
                while await held_bytes(running.url) != half:
                    await anyio.lowlevel.checkpoint()
            while await held_bytes(running.url):
                await anyio.lowlevel.checkpoint()


class Name(BaseModel):
    name: str


async def test_a_call_at_the_limit_gets_its_answers_and_can_be_cancelled_and_another_is_refused() -> None:
    server, ran, stopped = MCPServer("shop", log_level="CRITICAL"), list[str](), anyio.Event()

    @server.tool()
    async def order(ctx: Context) -> str:
        ran.append("order")
        return (await ctx.elicit("Who?", Name)).action

    @server.tool()
    async def wait() -> str:
        ran.append("wait")
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()
        return ""

    del order, wait  # registered
    async with serving(server, "http-handshake") as entry:
        made = GatewayConfig.model_validate({"servers": {"shop": {**entry, "call_timeout_s": 600}}})
        async with served(made, limits={"calls": 1}) as running, Client(running.url, mode="legacy") as other:

            async def answer(context: Any, params: Any) -> mcp.ElicitResult:
                with pytest.raises(MCPError, match=r"limits\.calls"):
                    await other.call_tool("order", {})
                return mcp.ElicitResult(action="accept", content={"name": "Ada"})

            with anyio.fail_after(60):
                async with Client(running.url, mode="legacy", elicitation_callback=answer) as user:
                    assert (await user.call_tool("order", {})).content[0].text == "accept"
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(user.call_tool, "wait", {})
                        while "wait" not in ran:
                            await anyio.lowlevel.checkpoint()
                        tasks.cancel_scope.cancel()
                    await stopped.wait()
    assert ran == ["order", "wait"]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"{}", b'{"jsonrpc":"2.0","id":1}', b'{"id":1,"method":"tools/call","params":[]}', b"[" * 5000],
)
async def test_what_is_no_request_is_answered_with_an_error(mini: Entries, config: Config, body: bytes) -> None:
    async with served(config(store=mini("get"))) as running:
        answer = await RawClient(running.url).post(body)
        assert answer.status_code == 400 and "error" in answer.json()


@pytest.mark.parametrize(
    "params", [{}, {"key": "k"}, {"key": 1}, {"key": "k", "trajectory": "t", "seed": "1"}, {"key": "k" * 300}]
)
async def test_missing_parameters_are_named(mini: Entries, config: Config, params: dict[str, Any]) -> None:
    async with served(config(store=mini("get"))) as running:
        answer = await RawClient(running.url).ask("mcp-rollout/leases/open", params)
        assert answer["error"]["code"] == -32602 and running.leases == 0


async def test_health_and_metrics(mini: Entries, config: Config) -> None:
    async with remote(config(store=mini("get", "refuse")), tokens=TOKENS) as (gateway, running):
        async with gateway.lease(trajectory="a", task=None, seed=1) as session:
            await session.call("get", {})
            await session.call("refuse", {})
            import httpx2

            async with httpx2.AsyncClient() as client:
                health = await client.get(running.url.replace("/mcp", "/health"))
                assert health.json() == {"status": "ok"}
                where = running.url.replace("/mcp", "/metrics")
                assert (await client.get(where)).status_code == 401
                text = (await client.get(where, headers={"authorization": f"Bearer {TOKEN}"})).text
    assert "mcp_rollout_leases 1\n" in text and 'mcp_rollout_calls_total{outcome="error_result"} 1\n' in text
    assert TOKEN not in text


def test_other_machines_need_a_token(tmp_path: Any) -> None:
    with pytest.raises(ValidationError, match="there is no token"):
        ServeConfig(host="0.0.0.0")
    with pytest.raises(ValidationError, match="shorter"):
        ServeConfig.model_validate({"tokens": ["short"]})
    file = tmp_path / "tokens"
    file.write_text("# ours\n\n")
    with pytest.raises(ConfigError, match="has no token"):
        read_tokens(file)
    file.write_text(f"# ours\n{TOKEN}\n")
    assert [token.get_secret_value() for token in read_tokens(file)] == [TOKEN]
