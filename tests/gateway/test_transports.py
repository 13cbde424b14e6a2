"""Every transport in every era, against real servers; faults of one call over SSE; and what must stay secret."""

import json
import logging
import sys
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import structlog
from mcp.client._memory import InMemoryTransport
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from serving import App, handshake_only, listening, serving
from starlette.applications import Starlette
from starlette.responses import Response

from mcp_rollout import Gateway, GatewayConfig, Session, load_servers
from mcp_rollout.gateway.config.models import ServerConfig
from mcp_rollout.gateway.connection.redaction import Secrets
from mcp_rollout.gateway.connection.secret_values import is_secret_name
from mcp_rollout.gateway.errors import DeliveryUnknown, ProtocolError, ServerUnavailable

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


class Weather:
    """In front of an SSE server: spoils the POST of one call, or ends the stream of events."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.spoil_next = ""
        self.end_at = b""
        """The stream ends in place of the next event that contains this."""

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["method"] == "GET":

            async def sent(message: MutableMapping[str, Any]) -> None:
                if self.end_at and self.end_at in message.get("body", b""):
                    message = {**message, "body": b"", "more_body": False}
                    self.end_at = b""
                await send(message)

            return await self._app(scope, receive, sent)
        pieces = [await receive()]
        while pieces[-1].get("more_body"):
            pieces.append(await receive())
        # A connection posts for itself, too, whenever it likes.
        spoil = self.spoil_next if b'"tools/call"' in b"".join(piece.get("body", b"") for piece in pieces) else ""
        if spoil:
            self.spoil_next = ""
        if spoil == "cut":
            raise ConnectionAbortedError
        if spoil:
            return await Response(status_code=int(spoil))(scope, receive, send)

        async def again() -> MutableMapping[str, Any]:
            return pieces.pop(0) if pieces else await receive()

        await self._app(scope, again, send)


async def test_over_sse_a_post_that_fails_fails_its_call_and_not_the_connection() -> None:
    server, ran = world()
    weather = Weather(server.sse_app())
    async with listening(weather) as address, session_on({"url": f"{address}/sse", "type": "sse"}) as session:
        weather.spoil_next = "503"
        with pytest.raises(DeliveryUnknown, match="world/put: sent, but never answered: HTTP 503"):
            await session.call("put", {"text": "lost"})
        weather.spoil_next = "429"
        with pytest.raises(DeliveryUnknown, match="HTTP 429"):
            await session.call("put", {"text": "late"})
        weather.spoil_next = "cut"
        with pytest.raises(DeliveryUnknown):
            await session.call("put", {"text": "cut"})
        assert (await session.call("get", {})).text == "here"
    assert ran == ["get"]


async def test_over_sse_an_answer_that_is_too_long_fails_its_call_alone() -> None:
    server, _ = world()
    async with serving(server, "sse") as entry, session_on({**entry, "max_message_bytes": 50_000}) as session:
        with pytest.raises(ProtocolError, match=r"max_message_bytes is 50000"):
            await session.call("large", {})
        assert (await session.call("get", {})).text == "here"


async def test_over_sse_the_end_of_the_stream_is_the_end_of_the_connection_and_it_is_opened_again() -> None:
    server, ran = world()
    weather = Weather(server.sse_app())
    async with listening(weather) as address, session_on({"url": f"{address}/sse", "type": "sse"}) as session:
        weather.end_at = b'"here"'  # the answer: other messages of the server come before it, whenever they like
        with anyio.fail_after(20):
            assert (await session.call("get", {})).text == "here"
    assert ran == ["get", "get"]


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


def test_secrets_are_known_by_where_they_stand() -> None:
    secrets = Secrets(
        ServerConfig.model_validate(
            {
                "command": "server",
                "args": ["--api-key", "argument-1", "--password=argument-2", "--root", "/srv/data", "short"],
                "env": {"GITHUB_TOKEN": "from-env-1", "LOG_DIR": "/var/log/mine", "DB": "postgres://u:in-url-9@h/db"},
            }
        )
    )
    text = "argument-1 argument-2 /srv/data from-env-1 /var/log/mine postgres://u:in-url-9@h/db"
    assert secrets.redact(text) == "[secret] [secret] /srv/data [secret] /var/log/mine postgres://u:[secret]@h/db"
    assert secrets.redact_json({"a": ["from-env-1", 1], "from-env-1": None}) == {"a": ["[secret]", 1], "[secret]": None}
    names = ("apiKey", "X-Auth-Token", "DATABASE_PASSWORD", "client_secret", "Authorization", "Cookie")
    assert all(map(is_secret_name, names))
    assert not any(map(is_secret_name, ("AUTHOR", "MONKEY_ISLAND", "Accept", "KEYBOARD", "passage")))


async def test_a_handshake_server_in_process_is_met_over_its_streams() -> None:
    server, _ = world()
    connect = lambda *_: InMemoryTransport(server)  # noqa: E731
    async with session_on({"factory": "unused:unused"}, connect) as session:
        assert (await session.call("get", {})).text == "here"
