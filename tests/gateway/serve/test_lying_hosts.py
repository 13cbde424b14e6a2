"""A host of worlds whose answers have another form costs the trajectories that it plays, and nothing else."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from served import at
from serving import listening
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mcp_rollout import Gateway, GatewayConfig
from mcp_rollout.gateway.errors import GatewayError, ProtocolError
from mcp_rollout.gateway.remote.names import (
    CALL_META,
    CATALOGUE,
    CLOSE,
    FAILURE,
    OPEN,
    OUTCOME_META,
    RENEW,
)

pytestmark = pytest.mark.anyio
TOKEN = "planted-token-0123456789"
TOOL = {"server": "h", "name": "x", "exposed_name": "x", "description": "", "input_schema": {"type": "object"}}
HONEST: dict[str, Any] = {
    CATALOGUE: {"servers": {"h": {"tools": [TOOL]}}, "idle_s": 0.1, "patience_s": 1, "process": "p"},
    OPEN: {"lease": "l", "granted": True, "process": "p"},
    RENEW: {"lost": []},
    CLOSE: {},
    "tools/call": {"content": [{"type": "text", "text": "said"}]},
}


class Host:
    """Answers as `HONEST` and these `lies` say, with the secrets in the request's headers in place of TOKEN.

    An answer with `error` is one of JSON-RPC.
    """

    def __init__(self, lies: dict[str, Any]) -> None:
        self._answers = {**HONEST, **lies}
        self.renewed = anyio.Event()

    async def answer(self, request: Request) -> Response:
        asked = await request.json()
        if asked["method"] == RENEW:
            self.renewed.set()
        result = self._answers[asked["method"]]
        if isinstance(result, dict):
            result = {"resultType": "complete", **result}
        said = {"error": result["error"]} if isinstance(result, dict) and "error" in result else {"result": result}
        secret = " ".join(each for each in request.headers.values() if TOKEN in each)
        sent = json.dumps({"jsonrpc": "2.0", "id": asked["id"], **said})
        return Response(sent.replace("TOKEN", secret), media_type="application/json")


@asynccontextmanager
async def lying(lies: dict[str, Any], *, host_type: type[Host] = Host) -> AsyncIterator[tuple[Gateway, Host]]:
    """A host, and a gateway of its that is not entered."""
    host = host_type(lies)
    app = Starlette(routes=[Route("/mcp", host.answer, methods=["POST"])])
    async with listening(app) as address:
        config = GatewayConfig.model_validate({"servers": {"h": {"command": "x"}}})
        yield Gateway(config, hosts=at(f"{address}/mcp", TOKEN)), host


@asynccontextmanager
async def leasing(lies: dict[str, Any], *, host_type: type[Host] = Host) -> AsyncIterator[tuple[Gateway, Host]]:
    async with lying(lies, host_type=host_type) as (gateway, host), gateway:
        yield gateway, host


CLAIMING = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    results = {
        "initialize": {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}, "extensions": {"mcp-rollout/leases": {"version": 1}}},
            "serverInfo": {"name": "h", "version": "1"},
        },
        "tools/list": {"tools": [{"name": "x", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": "said"}]},
    }
    if "id" in asked:
        found = results.get(asked["method"])
        answer = {"result": found} if found else {"error": {"code": -32601, "message": "Method not found"}}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)
"""


async def test_a_process_that_claims_to_serve_worlds_is_a_server_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(CLAIMING)
    entry = {"command": sys.executable, "args": ["-I", "-S", str(tmp_path / "server.py")]}
    async with Gateway(GatewayConfig.model_validate({"servers": {"h": entry}})) as gateway:
        async with gateway.lease(trajectory="t", task=None, seed=0) as session:
            assert (await session.call("x", {})).text == "said"


def note(text: str) -> dict[str, Any]:
    return {"events": {"notifications": [{"server": "h", "tool": "x", "kind": "log", "text": text}]}}


async def test_a_token_that_a_host_repeats_is_in_no_result_and_no_notification() -> None:
    called = {"content": [{"type": "text", "text": "it is TOKEN"}], "_meta": {OUTCOME_META: note("TOKEN")}}
    granted = {**HONEST[OPEN], "directory": "/of/TOKEN"}
    async with leasing({OPEN: granted, "tools/call": called}) as (gateway, _):
        async with gateway.lease(trajectory="t", task=None, seed=0) as session:
            assert (await session.call("x", {})).text == "it is [secret]"
            assert [each.text for each in session.drain_server_events().notifications] == ["[secret]"]
            assert session.lease_dir == Path("/of/[secret]")


@pytest.mark.parametrize(
    "called",
    [
        {"error": {"code": 1, "message": "it is TOKEN"}},
        {"error": {"code": 1, "message": "m", "data": {FAILURE: {"code": "world_lost", "message": "it is TOKEN"}}}},
        {"content": [], "_meta": {OUTCOME_META: {"events": {"requests": {"TOKEN": 1}}}}},
        {"content": [{"type": "image", "TOKEN": {}}]},
    ],
)
async def test_a_token_that_a_host_repeats_is_in_no_error_of_a_call(called: dict[str, Any]) -> None:
    async with leasing({"tools/call": called}) as (gateway, _):
        async with gateway.lease(trajectory="t", task=None, seed=0) as session:
            with pytest.raises(GatewayError) as raised:
                await session.call("x", {})
            assert TOKEN not in "".join(traceback.format_exception(raised.value))


async def test_a_token_that_a_host_repeats_is_in_no_reason_why_it_is_not_used() -> None:
    async with lying({CATALOGUE: {"error": {"code": 1, "message": "it is TOKEN"}}}) as (gateway, _):
        with pytest.raises(GatewayError, match=r"it is \[secret\]"):
            await gateway.__aenter__()


async def test_a_token_that_a_host_repeats_is_in_nothing_that_describes_a_server() -> None:
    server = {"tools": [TOOL], "instructions": "TOKEN", "identity": {"name": "TOKEN"}, "malformed": ["TOKEN"]}
    async with leasing({CATALOGUE: {**HONEST[CATALOGUE], "servers": {"h": server}}}) as (gateway, _):
        assert TOKEN not in repr((gateway.instructions, gateway.identities, gateway.malformed))


@pytest.mark.parametrize("lost", [5, [[1], {}], "l"])
async def test_renewals_of_another_form_end_neither_leases_nor_the_gateway(lost: Any) -> None:
    async with leasing({RENEW: {"lost": lost}}) as (gateway, host):
        async with gateway.lease(trajectory="t", task=None, seed=0) as session:
            await host.renewed.wait()
            assert (await session.call("x", {})).text == "said"


@pytest.mark.parametrize(
    "opened", [{"granted": True, "process": "p"}, {"lease": {}, "granted": True, "process": "p"}, {"granted": [1]}]
)
async def test_a_lease_of_another_form_is_refused(opened: Any) -> None:
    async with leasing({OPEN: opened}) as (gateway, _):
        with pytest.raises(ProtocolError):
            async with gateway.lease(trajectory="t", task=None, seed=0):
                pass


@pytest.mark.parametrize(
    "outcome", ["x", [1], {"resends": [1]}, {"resends": 10**30}, {"events": 5}, {"events": {"more_requests": -5}}]
)
async def test_an_outcome_of_another_form_fails_its_call(outcome: Any) -> None:
    called = {**HONEST["tools/call"], "_meta": {OUTCOME_META: outcome}}
    async with leasing({"tools/call": called}) as (gateway, _):
        async with gateway.lease(trajectory="t", task=None, seed=0) as session:
            with pytest.raises(ProtocolError):
                await session.call("x", {})


@pytest.mark.parametrize("bad", [{"idle_s": 0}, {"idle_s": -5}, {"patience_s": -1}, {"patience_s": None}])
async def test_an_offer_with_impossible_times_is_refused(bad: dict[str, Any]) -> None:
    async with lying({CATALOGUE: {**HONEST[CATALOGUE], **bad}}) as (gateway, _):
        with pytest.raises(ProtocolError, match=next(iter(bad))):
            await gateway.__aenter__()


@pytest.mark.parametrize("state", [{"problem": None}, {"problem": True}, {"fault": "of some kind"}, {"tool": False}])
async def test_a_failure_with_odd_fields_is_an_error_of_the_protocol(state: dict[str, Any]) -> None:
    failure = {"code": "server_unavailable", "message": "m", "state": state}
    async with leasing({"tools/call": {"error": {"code": 1, "message": "m", "data": {FAILURE: failure}}}}) as (own, _):
        async with own.lease(trajectory="t", task=None, seed=0) as session:
            with pytest.raises(ProtocolError):
                await session.call("x", {})


@pytest.mark.parametrize("fault", ["timed_out", "server_gone"])
async def test_a_failure_without_the_fields_of_its_class_is_complete(fault: str) -> None:
    failure = {"code": "call_timeout", "message": "the words of it", "state": {"fault": fault}}
    async with leasing({"tools/call": {"error": {"code": 1, "message": "m", "data": {FAILURE: failure}}}}) as (own, _):
        async with own.lease(trajectory="t", task=None, seed=0) as session:
            assert "the words of it" in (await session.call("x", {})).text


class OutOfStep(Host):
    """Answers every second request with the answer to the one before, as after a late duplicate on its connection."""

    def __init__(self, lies: dict[str, Any]) -> None:
        super().__init__(lies)
        self.before: Response | None = None
        self.calls = list[tuple[str, str]]()

    async def answer(self, request: Request) -> Response:
        asked = await request.json()
        if asked["method"] == "tools/call":
            text = asked["params"]["arguments"]["text"]
            self.calls.append((asked["params"]["_meta"][CALL_META], text))
            self._answers["tools/call"] = {"content": [{"type": "text", "text": text}]}
        own, late = await super().answer(request), self.before
        self.before = None if late is not None else own
        return late or own


async def test_an_answer_to_another_request_is_no_answer_and_the_call_keeps_its_key() -> None:
    offer = {**HONEST[CATALOGUE], "idle_s": 60}  # without renewals in between
    async with leasing({CATALOGUE: offer}, host_type=OutOfStep) as (gateway, host):
        assert isinstance(host, OutOfStep)
        async with gateway.lease(trajectory="t", task=None, seed=0) as session:
            for text in "abcdef":
                assert (await session.call("x", {"text": text})).text == text
    assert len(dict(host.calls)) == 6 and all(text == dict(host.calls)[key] for key, text in host.calls)
    assert len(host.calls) > 6
