"""On the way to a token: bounded answers, one renewal for all who wait, and nothing said to hosts it is not for."""

from __future__ import annotations

import base64
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import pytest
from serving import listening
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from mcp_rollout.gateway.config.calls import SamplingConfig
from mcp_rollout.gateway.config.models import ServerConfig
from mcp_rollout.gateway.connection.answerers import Sampler
from mcp_rollout.gateway.connection.in_flight import Question
from mcp_rollout.gateway.connection.redaction import Secrets
from mcp_rollout.gateway.transport.delivery import Delivery
from mcp_rollout.gateway.transport.http_connection import HttpConnections
from mcp_rollout.gateway.transport.http_exchange import Exchanges
from mcp_rollout.gateway.transport.oauth import Authority, AuthorizationFailed

pytestmark = pytest.mark.anyio
CALLERS = 64


class Issuer:
    """An authorization server on an address of its own."""

    def __init__(self) -> None:
        self.address = ""
        self.seen: list[Request] = []
        self.lifetime_s = 3600
        self.answer: Callable[[], Response] | None = None
        self.token_endpoint = ""
        self.gate = anyio.Event()
        self.gate.set()
        self.tokens = 0
        self.app = Starlette(
            routes=[
                Route("/.well-known/{rest:path}", self._metadata),
                Route("/token", self._token, methods=["POST"]),
            ]
        )

    async def _metadata(self, request: Request) -> Response:
        self.seen.append(request)
        return JSONResponse(
            {
                "issuer": self.address,
                "authorization_endpoint": f"{self.address}/authorize",
                "token_endpoint": self.token_endpoint or f"{self.address}/token",
                "response_types_supported": ["code"],
                "grant_types_supported": ["client_credentials"],
            }
        )

    async def _token(self, request: Request) -> Response:
        self.seen.append(request)
        await self.gate.wait()
        if self.answer is not None:
            return self.answer()
        self.tokens += 1
        token = f"access-token-{self.tokens}"
        return JSONResponse({"access_token": token, "token_type": "Bearer", "expires_in": self.lifetime_s})


class Resource:
    """What the token is for; it turns away everything else, with a body of any length."""

    def __init__(self, issuer: Issuer) -> None:
        self.address = ""
        self._issuer = issuer
        self.seen: list[Request] = []
        self.body: Callable[[], AsyncIterator[bytes]] | None = None
        self.challenge: dict[str, str] = {}
        self.app = Starlette(
            routes=[
                Route("/.well-known/oauth-protected-resource/{path:path}", self._about),
                Route("/mcp", self._answer, methods=["POST"]),
            ]
        )

    async def _about(self, request: Request) -> Response:
        self.seen.append(request)
        return JSONResponse(
            {"resource": f"{self.address}/mcp", "authorization_servers": [self._issuer.address]},
        )

    async def _answer(self, request: Request) -> Response:
        self.seen.append(request)
        current = f"Bearer access-token-{self._issuer.tokens}"
        if self._issuer.tokens and request.headers.get("authorization") == current:
            return Response("in")
        if self.body is not None:
            return StreamingResponse(self.body(), 401)
        return Response("out", 401, headers=self.challenge)


@asynccontextmanager
async def guarded(
    userinfo: str = "", token_endpoint: str | None = None, **more: Any
) -> AsyncGenerator[tuple[Callable[[], Awaitable[str]], Issuer, Resource]]:
    issuer = Issuer()
    resource = Resource(issuer)
    async with listening(issuer.app) as issuer.address, listening(resource.app) as resource.address:
        config = ServerConfig.model_validate(
            {
                "url": f"{resource.address.replace('http://', 'http://' + userinfo)}/mcp",
                "client_credentials": {
                    "issuer": issuer.address,
                    "client_id": "me",
                    "client_secret": "client-secret-1",
                    "token_endpoint": token_endpoint,
                },
                **more,
            }
        )
        connections = HttpConnections(2 * CALLERS)
        exchanges = Exchanges(config, connections=connections, authority=Authority(config))

        async def post() -> str:
            connection = await exchanges.open("POST", {}, b"{}", Delivery())
            try:
                while not connection.answer.complete:
                    await connection.arrival()
                return connection.answer.take().decode()
            finally:
                connection.leave()

        try:
            yield post, issuer, resource
        finally:
            connections.close()


async def test_however_many_are_turned_away_one_of_them_gets_the_token() -> None:
    async with guarded() as (post, issuer, _):
        issuer.lifetime_s = -1  # expired as it arrives
        assert await post() == "in"
        assert issuer.tokens == 1
        issuer.lifetime_s, issuer.gate = 3600, anyio.Event()
        answers: list[str] = []

        async def call() -> None:
            answers.append(await post())

        async with anyio.create_task_group() as tasks:
            for _ in range(CALLERS):
                tasks.start_soon(call)
            while not any(request.url.path == "/token" for request in issuer.seen[2:]):
                await anyio.lowlevel.checkpoint()
            issuer.gate.set()
        assert answers == ["in"] * CALLERS
        assert issuer.tokens == 2


async def test_who_waited_for_a_token_that_was_refused_does_not_ask_again() -> None:
    async with guarded() as (post, issuer, resource):
        issuer.answer = lambda: JSONResponse({"error": "invalid_client"}, 400)
        issuer.gate = anyio.Event()
        failures: list[str] = []

        async def call() -> None:
            with pytest.raises(AuthorizationFailed) as caught:
                await post()
            failures.append(caught.value.problem)

        def denied() -> int:
            return sum(request.method == "POST" for request in resource.seen)

        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(call)
            while denied() < 8:
                await anyio.lowlevel.checkpoint()
            issuer.gate.set()
        assert set(failures) == {"authorization failed: OAuthTokenError"} and len(failures) == 8
        assert sum(request.method == "POST" for request in issuer.seen) < 4


async def test_who_waited_for_an_authorization_server_that_breaks_off_does_not_ask_again() -> None:
    asked, gate = 0, anyio.Event()

    async def break_off(stream: anyio.abc.SocketStream) -> None:
        nonlocal asked
        asked += 1
        async with stream:
            await gate.wait()

    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):
        address = f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}"
        tasks.start_soon(listener.serve, break_off)
        credentials = {"issuer": address, "client_id": "me", "client_secret": "client-secret-1"}
        async with guarded(client_credentials=credentials) as (post, issuer, resource):
            issuer.address = address
            failures: list[str] = []

            async def call() -> None:
                with pytest.raises(AuthorizationFailed) as caught:
                    await post()
                failures.append(caught.value.problem)

            async with anyio.create_task_group() as calls:
                for _ in range(8):
                    calls.start_soon(call)
                while sum(request.method == "POST" for request in resource.seen) < 8:
                    await anyio.lowlevel.checkpoint()
                gate.set()
        assert len(failures) == 8 and len(set(failures)) == 1 and failures[0].startswith("authorization failed: ")
        assert asked < 4
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("issuer", ["auth.example.com", "ftp://h", "https://", "https://h:port", "https://[::1", ""])
def test_an_issuer_that_is_no_address_is_told_when_the_configuration_is_read(issuer: str) -> None:
    entry = {"url": "https://h/mcp", "client_credentials": {"issuer": issuer, "client_id": "a", "client_secret": "b"}}
    with pytest.raises(ValueError, match="issuer must begin with http:// or https:// and name a host"):
        ServerConfig.model_validate(entry)


async def test_the_body_of_a_refusal_is_not_read() -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1 << 16
            yield b"x" * (1 << 16)
            await anyio.lowlevel.checkpoint()

    async with guarded() as (post, _, resource):
        resource.body = endless
        with anyio.fail_after(20):
            assert await post() == "in"
    assert sent < 32 << 20  # what fits into buffers on the way


async def test_a_token_whose_answer_has_no_end_or_never_comes_is_given_up() -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b" " * (1 << 16)
            await anyio.lowlevel.checkpoint()

    async with guarded() as (post, issuer, _):
        issuer.answer = lambda: StreamingResponse(endless())
        with anyio.fail_after(20), pytest.raises(AuthorizationFailed, match="more than 1048576 bytes"):
            await post()
        issuer.answer = lambda: Response(b"{}", headers={"content-encoding": "gzip"})
        with pytest.raises(AuthorizationFailed, match="is encoded"):
            await post()
    async with guarded(start_timeout_s=1) as (post, issuer, _):
        issuer.gate = anyio.Event()
        with anyio.fail_after(20), pytest.raises(AuthorizationFailed, match="no token within 1 s"):
            await post()
        issuer.gate.set()


async def test_metadata_at_an_address_that_only_the_server_names_is_not_asked_for() -> None:
    internal = Issuer()
    async with listening(internal.app) as internal.address, guarded() as (post, issuer, resource):
        resource.challenge = {
            "www-authenticate": f'Bearer resource_metadata="{internal.address}/.well-known/oauth-protected-resource"'
        }
        assert await post() == "in"  # by the metadata at the server's own address
        assert internal.seen == []
    async with listening(internal.app) as internal.address, guarded() as (post, issuer, resource):
        issuer.address = internal.address  # as the resource has it, not the entry
        with pytest.raises(AuthorizationFailed, match=rf"{internal.address}/\S+ was not asked"):
            await post()
        assert internal.seen == []


async def test_the_secret_goes_to_the_issuer_s_origin_and_to_the_endpoint_that_the_entry_names() -> None:
    other = Issuer()
    async with listening(other.app) as other.address:
        async with guarded() as (post, issuer, _):
            issuer.token_endpoint = f"{other.address}/token"
            with pytest.raises(AuthorizationFailed, match=rf"{other.address}/token was not asked"):
                await post()
            assert other.seen == []
        async with guarded(token_endpoint=f"{other.address}/token") as (post, issuer, _):
            issuer.token_endpoint = f"{other.address}/token"
            issuer.tokens = 1  # what `other` is going to issue
            assert await post() == "in"
            assert [request.url.path for request in other.seen] == ["/token"]


async def test_user_and_password_of_a_url_reach_no_other_host_and_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with guarded("alice:pass%21word@") as (post, issuer, resource):
        assert await post() == "in"
    basic = "Basic " + base64.b64encode(b"alice:pass!word").decode()
    assert resource.seen[0].headers["authorization"] == basic
    assert issuer.seen
    assert all(request.headers.get("authorization") != basic for request in issuer.seen)
    assert "alice" not in caplog.text and "word" not in caplog.text.replace("password", "")


async def test_user_and_password_of_a_sampling_url_reach_its_host_and_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[str | None] = []

    async def complete(request: Request) -> Response:
        seen.append(request.headers.get("authorization"))
        return JSONResponse({"choices": [{"message": {"content": "yes"}}]})

    async with listening(Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"])])) as address:
        url = address.replace("http://", "http://alice:pass-word-1@") + "/v1"
        config = SamplingConfig(url=url, model="m")
        question = Question("s", "t", {"messages": [], "maxTokens": 5})
        answer = await Sampler(config).answer(question)
    assert answer["content"]["text"] == "yes"
    assert seen == ["Basic " + base64.b64encode(b"alice:pass-word-1").decode()]
    assert "HTTP Request" in caplog.text and "alice" not in caplog.text and "pass-word-1" not in caplog.text


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("https://u:pass%21word@h/mcp", ["pass%21word", "pass!word", base64.b64encode(b"u:pass!word").decode()]),
        ("https://ghp_0123456789@h/mcp", ["ghp_0123456789", base64.b64encode(b"ghp_0123456789:").decode()]),
    ],
)
def test_a_urls_credentials_are_secret_however_they_are_spelt(url: str, told: list[str]) -> None:
    secrets = Secrets(ServerConfig.model_validate({"url": url}))
    assert [secrets.redact(f"<{value}>") for value in told] == ["<[secret]>"] * len(told)
    config = ServerConfig.model_validate({"command": "git", "args": ["clone", "https://ghp_0123456789ab@host/repo"]})
    assert Secrets(config).redact("ghp_0123456789ab") == "[secret]"
