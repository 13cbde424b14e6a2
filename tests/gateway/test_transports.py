"""Every transport in every era, against real servers; faults of one call over SSE; and what must stay secret."""

import json
import logging
import sys
from collections.abc import AsyncIterator, MutableMapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import structlog
from mcp.client._memory import InMemoryTransport
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from serving import App, handshake_only, listening, serving
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from mcp_rollout import Gateway, GatewayConfig, Session, load_servers
from mcp_rollout.gateway.errors import ProtocolError, ServerUnavailable
from mcp_rollout.mcp_servers.kit import InProcess

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
OLD = ROOT / "tests" / "support" / "old_server.py"
MODERN = "2026-07-28"
HANDSHAKE = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")


def world() -> tuple[MCPServer, list[str]]:
    server, ran = MCPServer("world", log_level="ERROR"), list[str]()

    @server.tool()
    def put(text: str) -> str:
        """Put."""
        ran.append(text)
        return "stored"

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def get() -> str:
        """Get."""
        ran.append("get")
        return "here"

    @server.tool()
    def version(ctx: Context) -> str:
        """The protocol version."""
        return str(ctx.protocol_version)

    @server.tool()
    def large() -> str:
        """Large."""
        return "x" * 100_000

    @server.tool(structured_output=False)
    def leak(text: str, fail: bool = False) -> str:
        """Repeat."""
        if fail:
            raise ToolError(f"no: {text}")
        return f"it is {text}"

    return server, ran


@asynccontextmanager
async def session_on(entry: dict[str, Any], connect: Any = None) -> AsyncIterator[Session]:
    config = GatewayConfig.model_validate({"servers": {"world": {"required": True, **entry}}})
    async with (
        Gateway(config, connect=connect) as gateway,
        gateway.lease(trajectory="t", task=None, seed=1) as session,
    ):
        yield session


@pytest.mark.parametrize(
    ("transport", "expected"),
    [("http", MODERN), ("http-handshake", "2025-11-25"), ("sse", MODERN), ("sse-handshake", "2025-11-25")],
)
async def test_the_newest_version_that_both_know_is_spoken_over_http(transport: str, expected: str) -> None:
    server, _ = world()
    async with serving(server, transport) as entry, session_on(entry) as session:
        assert (await session.call("version", {})).text == expected


async def test_an_in_process_server_speaks_the_newest_version() -> None:
    server, _ = world()
    async with session_on({"factory": "unused:unused"}, lambda *_: server) as session:
        assert (await session.call("version", {})).text == MODERN


async def test_a_server_of_the_sdk_speaks_the_newest_version_over_stdio() -> None:
    program = "from test_transports import world; world()[0].run('stdio')"
    env = {"PYTHONPATH": f"{ROOT}:{Path(__file__).parent}:{ROOT / 'tests' / 'support'}"}
    async with session_on({"command": sys.executable, "args": ["-c", program], "env": env}) as session:
        assert (await session.call("version", {})).text == MODERN


@pytest.mark.parametrize("version", HANDSHAKE)
async def test_every_version_of_the_handshake_era_is_spoken_over_stdio(version: str) -> None:
    entry = {"command": sys.executable, "args": ["-I", "-S", str(OLD), version]}
    async with session_on(entry) as session:
        assert (await session.call("version", {})).text == version


@pytest.mark.parametrize("version", HANDSHAKE)
@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_every_version_of_the_handshake_era_is_spoken_over_http(transport: str, version: str) -> None:
    """An SDK server that gives in to no proposal: its handshake answers with this version."""
    server, _ = world()

    def older(app: App) -> App:
        async def spoken(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
            async def asked() -> Any:
                message = await receive()
                body = message.get("body", b"")
                if b'"initialize"' in body:
                    proposal = json.loads(body)
                    proposal["params"]["protocolVersion"] = version
                    message = {**message, "body": json.dumps(proposal).encode()}
                    message["body"] += b" " * (len(body) - len(message["body"]))
                return message

            await app(scope, asked, send)

        return spoken

    app = server.sse_app() if transport == "sse" else server.streamable_http_app()
    path = "sse" if transport == "sse" else "mcp"
    async with listening(older(handshake_only(app))) as address:
        async with session_on({"url": f"{address}/{path}", "type": transport}) as session:
            assert (await session.call("version", {})).text == version


@pytest.mark.parametrize("transport", ["http", "sse", "in_lines"])
async def test_an_answer_that_is_too_long_fails_its_call_alone(transport: str) -> None:
    server, _ = world()
    bound = {"max_message_bytes": 50_000}
    async with AsyncExitStack() as stack:
        if transport == "in_lines":
            leased = session_on({"factory": "unused:unused", **bound}, lambda *_: InProcess(server))
        else:
            entry = await stack.enter_async_context(serving(server, transport))
            leased = session_on({**entry, **bound})
        session = await stack.enter_async_context(leased)
        with pytest.raises(ProtocolError, match="max_message_bytes"):
            await session.call("large", {})
        assert (await session.call("get", {})).text == "here"


async def test_a_url_without_an_event_stream_is_said_to_have_none() -> None:
    async with listening(Starlette()) as address:
        with pytest.raises(ServerUnavailable, match="HTTP 404"):
            async with session_on({"url": f"{address}/sse", "type": "sse"}):
                pass
    with pytest.raises(ServerUnavailable, match="ConnectError"):
        async with session_on({"url": "http://127.0.0.1:9/sse", "type": "sse"}):
            pass


TOKEN = "tok-3f9a2c77"


@pytest.mark.parametrize("transport", ["http", "http-handshake", "sse"])
async def test_secrets_stay_out_of_logs_results_and_errors(
    transport: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server, _ = world()
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("WORLD_TOKEN", TOKEN)
    monkeypatch.setenv("WORLD_PASSWORD", "pass-word-1")
    seen: list[tuple[str, str]] = []

    async def spy(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            seen.append((headers.get(b"x-api-key", b"").decode(), scope["query_string"].decode()))
        await app(scope, receive, send)

    app = server.sse_app() if transport == "sse" else server.streamable_http_app()
    app = app if transport == "http" else handshake_only(app)
    async with listening(spy) as address:
        host = address.removeprefix("http://")
        path = "sse" if transport == "sse" else "mcp"
        entry = {
            "url": f"http://me:${{WORLD_PASSWORD}}@{host}/{path}?api_key=${{WORLD_TOKEN}}",
            "headers": {"X-Api-Key": "${WORLD_TOKEN}"},
            "type": "sse" if transport == "sse" else "http",
            "required": True,
        }
        file = tmp_path / "servers.json"
        file.write_text(json.dumps({"mcpServers": {"world": entry}}))
        with structlog.testing.capture_logs() as logs:
            async with (
                Gateway(load_servers(file)) as gateway,
                gateway.lease(trajectory="t", task=None, seed=1) as session,
            ):
                told = await session.call("leak", {"text": f"{TOKEN} and pass-word-1"})
                refused = await session.call("leak", {"text": TOKEN, "fail": True})
    assert told.text == "it is [secret] and [secret]" and refused.text.endswith("no: [secret]")
    # The server got them all the same.
    assert seen[0][0] == TOKEN and f"api_key={TOKEN}" in seen[0][1]
    said = repr(logs) + "".join(
        record.getMessage() for record in caplog.records if not record.name.startswith("mcp.server")
    )
    assert TOKEN not in said and "pass-word-1" not in said


async def test_secrets_in_a_servers_last_words_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import os, sys; sys.exit('cannot log in with ' + os.environ['API_KEY'])"
    entry = {"command": sys.executable, "args": ["-c", program], "env": {"API_KEY": TOKEN}}
    with pytest.raises(ServerUnavailable) as caught:
        async with session_on(entry):
            pass
    assert "cannot log in with [secret]" in str(caught.value)
    cause: BaseException | None = caught.value
    while cause is not None:
        assert TOKEN not in str(cause)
        cause = cause.__cause__


class Guarded:
    """An MCP server behind bearer tokens, and the authorization server that gives them out, on one address."""

    def __init__(self, app: Any) -> None:
        self.address = ""
        self.grants: list[dict[str, str]] = []
        self.valid: set[str] = set()
        self.secret = "client-secret-1"
        self._mcp = app
        routes = [
            Route("/.well-known/oauth-protected-resource/{path:path}", self._resource),
            Route("/.well-known/oauth-authorization-server", self._metadata),
            Route("/token", self._token, methods=["POST"]),
            Mount("/", self._guard),
        ]
        self.app = Starlette(routes=routes, lifespan=getattr(app.router, "lifespan_context", None))

    async def _resource(self, request: Request) -> Response:
        resource = f"{self.address}/{request.path_params['path']}"
        return JSONResponse({"resource": resource, "authorization_servers": [self.address]})

    async def _metadata(self, request: Request) -> Response:
        return JSONResponse(
            {
                "issuer": self.address,
                "authorization_endpoint": f"{self.address}/authorize",
                "token_endpoint": f"{self.address}/token",
                "response_types_supported": ["code"],
                "grant_types_supported": ["client_credentials"],
                "token_endpoint_auth_methods_supported": ["client_secret_basic"],
            }
        )

    async def _token(self, request: Request) -> Response:
        form = {name: str(value) for name, value in (await request.form()).items()}
        given = httpx2.BasicAuth("client-1", self.secret)
        expected = httpx2.Request("GET", "http://x")
        next(given.sync_auth_flow(expected))
        if request.headers.get("authorization") != expected.headers["authorization"]:
            return JSONResponse({"error": "invalid_client"}, status_code=401)
        self.grants.append(form)
        token = f"access-token-{len(self.grants)}"
        self.valid = {token}
        return JSONResponse({"access_token": token, "token_type": "Bearer", "expires_in": 3600})

    async def _guard(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        token = dict(scope["headers"]).get(b"authorization", b"").decode().removeprefix("Bearer ")
        if token not in self.valid:
            challenge = {"www-authenticate": "Bearer"}
            return await Response(status_code=401, headers=challenge)(scope, receive, send)
        await self._mcp(scope, receive, send)


@asynccontextmanager
async def guarded(transport: str) -> AsyncIterator[tuple[Guarded, dict[str, Any], MCPServer]]:
    server, _ = world()
    world_app: Any = server.sse_app() if transport == "sse" else server.streamable_http_app()
    guard = Guarded(world_app)
    app: App = guard.app if transport == "http" else handshake_only(guard.app)
    async with listening(app) as guard.address:
        path = "sse" if transport == "sse" else "mcp"
        credentials = {"issuer": guard.address, "client_id": "client-1", "client_secret": guard.secret}
        entry = {
            "url": f"{guard.address}/{path}",
            "type": "sse" if transport == "sse" else "http",
            "client_credentials": {**credentials, "scope": "tools"},
        }
        yield guard, entry, server


@pytest.mark.parametrize("transport", ["http", "http-handshake", "sse"])
async def test_client_credentials_get_a_token_and_a_new_one_when_it_is_turned_away(transport: str) -> None:
    async with guarded(transport) as (guard, entry, _), session_on(entry) as session:
        assert (await session.call("get", {})).text == "here"
        assert [grant["grant_type"] for grant in guard.grants] == ["client_credentials"]
        assert guard.grants[0]["scope"] == "tools"
        guard.valid = set()
        assert (await session.call("put", {"text": "x"})).text == "stored"
        assert len(guard.grants) == 2
        guard.valid = set()  # a token that is renewed within a call is secret in that call's own answer
        assert (await session.call("leak", {"text": "access-token-3"})).text == "it is [secret]"


async def test_a_handshake_server_in_process_is_met_over_its_streams() -> None:
    server, _ = world()
    connect = lambda *_: InMemoryTransport(server)  # noqa: E731
    async with session_on({"factory": "unused:unused"}, connect) as session:
        assert (await session.call("get", {})).text == "here"
