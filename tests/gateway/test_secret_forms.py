"""Secrets as entries of real servers have them, and as servers repeat them: each form is found, and little else is."""

from __future__ import annotations

import base64
import html
import json
import logging
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import anyio
import pytest
import structlog
from pydantic import ValidationError
from serving import listening
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mcp_rollout import Gateway, GatewayConfig
from mcp_rollout.gateway.config.calls import SamplingConfig
from mcp_rollout.gateway.config.models import ServerConfig
from mcp_rollout.gateway.connection.answerers import Sampler
from mcp_rollout.gateway.connection.in_flight import Question
from mcp_rollout.gateway.connection.redaction import REDACTED, Redactor
from mcp_rollout.gateway.connection.secret_patterns import SecretPattern
from mcp_rollout.gateway.transport.delivery import Delivery
from mcp_rollout.gateway.transport.http_connection import HttpConnections
from mcp_rollout.gateway.transport.http_exchange import Exchanges
from mcp_rollout.gateway.types import Content, ContentKind, ToolResult

S = "Kq7vXw2rT9LmZ4bN8cYd"
"""A secret as it is repeated."""
ODD = "p@ss/w&rd=<1>+'2"
UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dBjftJeZ4CVPmB92K27uhbUJU1p1r_wW1gFWFOEjXk"
PEM = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEF\nAASCBKcwggSjAgEAAoIB\n-----END PRIVATE KEY-----\n"


def of(**keys: Any) -> dict[str, Any]:
    return {"command": "server", **keys}


def at(url: str, **keys: Any) -> dict[str, Any]:
    return {"url": url, **keys}


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


GIVEN: dict[str, tuple[dict[str, Any], str]] = {
    "variable": (of(env={"API_KEY": S}), S),
    "header": (at("https://h/mcp", headers={"Authorization": f"Bearer {S}"}), S),
    "option": (of(args=["--token", S]), S),
    "variable among the arguments": (of(args=["run", "-e", f"API_KEY={S}", "image"]), S),
    "password in a URL": (of(env={"DB": f"postgres://u:{S}@h/db"}), S),
    "JSON of headers": (of(env={"OPENAPI_MCP_HEADERS": json.dumps({"Authorization": f"Bearer {S}", "V": "2"})}), S),
    "JSON among the arguments": (of(args=["--config", json.dumps({"auth": {"type": "bearer", "token": S}})]), S),
    "connection string of SQL Server": (of(env={"CONNECTION": f"Server=h;User Id=sa;Password={S};Encrypt=yes"}), S),
    "connection string of Azure": (
        of(env={"STORAGE": f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={S}==;EndpointSuffix=x"}),
        f"{S}==",
    ),
    "connection string of libpq": (of(env={"PG_DSN": f"host=h user=u password='{S}' dbname=d"}), S),
    "path of a hosted server": (at(f"https://mcp.example.com/api/mcp/s/{UUID}/mcp"), UUID),
    "path of a webhook": (of(env={"HOOK": f"https://hooks.example.com/services/T01/B02/{S}"}), S),
    "signature in a query": (at(f"https://h/mcp?sp=r&sig={quote(ODD, safe='')}"), ODD),
    "code in a query": (of(args=[f"https://h/api/mcp?code={S}"]), S),
    "web token under any name": (at("https://h/mcp", headers={"X-Session": JWT}), JWT),
    "web token among the arguments": (of(args=["connect", JWT]), JWT),
    "token with its issuer's mark": (of(env={"GITHUB": f"ghp_{S}"}), f"ghp_{S}"),
    "key of a service account": (of(env={"ACCOUNT": json.dumps({"type": "x", "private_key": PEM})}), PEM),
    "body of a key": (of(env={"DEPLOY": PEM}), "".join(PEM.splitlines()[1:3])),
    "service account in base64": (of(env={"GOOGLE_CREDENTIALS": encoded(json.dumps({"private_key_id": S}))}), S),
    "password of basic authorization": (
        at("https://h/mcp", headers={"Authorization": f"Basic {encoded(f'u:{S}')}"}),
        S,
    ),
    "cookie": (at("https://h/mcp", headers={"Cookie": f"session={S}; theme=dark"}), S),
    "fixed argument": (of(tools={"change": {"query": {"fixed": {"login": {"password": S}}}}}), S),
    "name in `secrets`": (of(env={"LICENCE": "plain words"}, secrets=["LICENCE"]), "plain words"),
}
REPEATED: dict[str, Callable[[str], str]] = {
    "percent": lambda text: quote(text, safe=""),
    "double percent": lambda text: quote(quote(text, safe=""), safe=""),
    "HTML": html.escape,
    "HTML by numbers": lambda text: "".join(c if c.isalnum() else f"&#{ord(c)};" for c in text),
    "HTML in HTML": lambda text: html.escape(html.escape(text)),
    "JSON in JSON": lambda text: json.dumps(json.dumps(text)),
    "base64 over lines": lambda text: base64.encodebytes(
        b"user and password of " * 2 + f"it: {text}".encode()
    ).decode(),
    "base64 in a URL": lambda text: quote(encoded(text), safe=""),
}


@pytest.mark.parametrize("form", GIVEN)
def test_a_secret_is_found_wherever_an_entry_has_it(form: str) -> None:
    entry, secret = GIVEN[form]
    redactor = Redactor(ServerConfig.model_validate(entry))
    assert redactor.text(f"it is {secret}, so") == f"it is {REDACTED}, so"
    assert redactor.json({"said": [secret]}) == {"said": [REDACTED]}


@pytest.mark.parametrize("form", REPEATED)
@pytest.mark.parametrize("secret", [S, ODD])
@pytest.mark.anyio
async def test_a_secret_is_found_however_it_is_encoded(form: str, secret: str) -> None:
    redactor = Redactor(ServerConfig.model_validate(of(env={"API_KEY": secret})))
    told = REPEATED[form](secret)
    shown = redactor.text(f"<{told}>")
    beside = len("user and password of " * 2) * 3 // 2 if form == "base64 over lines" else 2
    assert REDACTED in shown and len(shown) < len(REDACTED) + beside + 8
    halves = (told[: len(told) * 2 // 3], told[len(told) * 2 // 3 :])
    split = ToolResult(content=tuple(Content(kind=ContentKind.TEXT, text=half) for half in halves))
    assert sum(len(block.text) for block in (await redactor.result(split)).content) < len(REDACTED) + beside + 8


@pytest.mark.parametrize(
    "entry",
    [
        of(env={"LOG_DIR": "/var/log/customer_id", "MODE": "read-only", "OPTIONS": "primary_key=customer_id"}),
        of(env={"TABLES": json.dumps({"primary_key": "customer_id", "sortKey": "created"})}),
        of(args=["-y", "@modelcontextprotocol/server-filesystem@2025.11.18", "/srv/customer_id"]),
        at("https://api.example.com/v1/mcp-server-2025-11-25/customer_id?mode=read-only&region=eu-central-1"),
    ],
)
def test_what_is_no_secret_stays(entry: dict[str, Any]) -> None:
    text = "the customer_id is created in /srv/customer_id, read-only, by mcp-server-2025-11-25 of eu-central-1"
    assert Redactor(ServerConfig.model_validate(entry)).text(text) == text


def test_a_repeated_beginning_of_a_secret_costs_no_more_than_the_text_is_long() -> None:
    redactor = Redactor(ServerConfig.model_validate(of(env={"API_KEY": "/" + S})))
    flood = "\\" * 200_000 + f"/{S[:-1]}" * 5_000
    assert redactor.text(flood) == flood
    assert redactor.text(f"{flood}/{S}{flood}") == f"{flood}{REDACTED}{flood}"


@pytest.mark.parametrize("secret", [S, ODD, UUID, JWT, "pass/word 3 with signs", "pässwörd-日本-x"])
def test_text_that_nearly_spells_a_secret_is_not_compared_in_full(secret: str) -> None:
    pattern = SecretPattern(secret)
    near = (secret[:-1], quote(secret[:-1], safe=""), html.escape(secret[:-1]), encoded(secret)[:-6], secret[1:])
    for text in (*near, *(each * 50 for each in near)):
        assert not pattern.may_be_in(f"{text}~{text}")
    assert "_whole" not in vars(pattern)  # what Python's engine needs was not even made
    assert [f"~{secret}~"[begin:end] for begin, end in pattern.places(f"~{secret}~")] == [secret]


@pytest.mark.anyio
async def test_other_tasks_run_while_a_large_result_is_searched() -> None:
    redactor = Redactor(ServerConfig.model_validate(of(env={"API_KEY": S})))
    nearly, steps = S[:-1] * 20_000, list[str]()
    result = ToolResult(content=(Content(kind=ContentKind.TEXT, text=f"{nearly}{S}"),), structured={"x": nearly})

    async def other() -> None:
        steps.append("other")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        redacted = await redactor.result(result)
        steps.append("result")
    assert steps == ["other", "result"] and redacted.content[0].text == f"{nearly}{REDACTED}"


@pytest.mark.anyio
async def test_what_looks_like_a_secret_and_is_not_taken_for_one_is_reported() -> None:
    entries: dict[str, Any] = {
        "unnamed": of(env={"LICENCE": S, "API_KEY": "0123456789"}, args=["--login", S[::-1]]),
        "named": of(env={"LICENCE": S}, secrets=["LICENCE"]),
        "none": of(env={"BUILD": S}, secrets=[]),
    }
    with structlog.testing.capture_logs() as logs:
        Gateway(GatewayConfig.model_validate({"servers": entries}))
    (report,) = [line for line in logs if line["event"] == "server.secret_unnamed"]
    assert report["server"] == "unnamed" and report["places"] == ["env.LICENCE", "args.1"]
    assert S not in repr(logs)


def test_a_name_in_secrets_that_the_entry_lacks_is_an_error() -> None:
    with pytest.raises(ValidationError, match="secrets names 'LICENSE', which is not in the entry"):
        ServerConfig.model_validate(of(env={"LICENCE": S}, secrets=["LICENSE"]))


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("https://u:pass%21word@h/mcp", ["pass%21word", "pass!word", encoded("u:pass!word")]),
        ("https://ghp_0123456789@h/mcp", ["ghp_0123456789", encoded("ghp_0123456789:")]),
    ],
)
def test_a_urls_credentials_are_secret_however_they_are_spelt(url: str, told: list[str]) -> None:
    redactor = Redactor(ServerConfig.model_validate(at(url)))
    assert [redactor.text(f"<{value}>") for value in told] == ["<[secret]>"] * len(told)


@pytest.mark.anyio
async def test_user_and_password_of_a_url_reach_its_host_and_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[str | None] = []

    async def complete(request: Request) -> Response:
        seen.append(request.headers.get("authorization"))
        return JSONResponse({"choices": [{"message": {"content": "yes"}}]})

    routes = [Route("/v1/chat/completions", complete, methods=["POST"]), Route("/mcp", complete, methods=["POST"])]
    async with listening(Starlette(routes=routes)) as address:
        given = address.replace("http://", "http://alice:pass-word-1@")
        question = Question("s", "t", {"messages": [], "maxTokens": 5})
        answer = await Sampler(SamplingConfig(url=f"{given}/v1", model="m")).answer(question)
        entry = ServerConfig.model_validate(at(f"{given}/mcp"))
        connection = await Exchanges(entry, connections=HttpConnections(1)).open("POST", {}, b"{}", Delivery())
        connection.close()
    assert answer["content"]["text"] == "yes"
    assert seen == [f"Basic {encoded('alice:pass-word-1')}"] * 2
    assert "HTTP Request" in caplog.text and "alice" not in caplog.text and "pass-word-1" not in caplog.text
