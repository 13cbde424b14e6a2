"""Streamable HTTP: faults of one request stay with that request."""

from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ToolAnnotations
from structlog.testing import capture_logs

from mcp_rollout import Gateway, GatewayConfig
from mcp_rollout.gateway.errors import ConnectTimeout, DeliveryUnknown, GatewayError, ProtocolError, ServerUnavailable
from mcp_rollout.gateway.leases.opening import Openings

pytestmark = pytest.mark.anyio
Message = MutableMapping[str, Any]
App = Callable[..., Awaitable[None]]


class Weather:
    """An ASGI layer in front of a server that spoils one answer when told to."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.spoil_next: str = ""
        self.handshake_only = False
        self.ended_sessions: set[str] = set()
        self.requests: list[dict[str, str]] = []
        self.stop = anyio.Event()
        self.stopped = anyio.Event()

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = {key.decode(): value.decode() for key, value in scope["headers"]}
        self.requests.append(headers)
        if self.handshake_only and headers.get("mcp-method") == "server/discover":
            return await answer(send, 404)
        if headers.get("mcp-session-id") in self.ended_sessions:
            return await answer(send, 404)
        if headers.get("mcp-method") == "subscriptions/listen":
            return await self._app(scope, receive, send)  # held open beside the calls
        spoil, self.spoil_next = self.spoil_next, ""
        if spoil.isdigit():
            return await answer(send, int(spoil))
        if spoil == "cut":

            async def cut(message: Message) -> None:
                # The tool has run; its answer is announced and then never comes.
                if message["type"] == "http.response.start":
                    kept = [(key, value) for key, value in message["headers"] if key != b"content-length"]
                    await send({**message, "headers": [*kept, (b"content-length", b"99999")]})
                else:
                    await send({"type": "http.response.body", "body": b"{", "more_body": True})
                    raise ConnectionAbortedError

            return await self._app(scope, receive, cut)
        await self._app(scope, receive, send)


async def answer(send: Any, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def served(server: MCPServer, *, json: bool = False, sse: bool = False) -> AsyncIterator[tuple[str, Weather]]:
    weather = Weather(server.sse_app() if sse else server.streamable_http_app(json_response=json))
    running = uvicorn.Server(
        uvicorn.Config(weather, port=0, log_level="critical", ws="none", timeout_graceful_shutdown=1)
    )

    async def serve() -> None:
        await running.serve()
        weather.stopped.set()

    async def watch() -> None:
        await weather.stop.wait()
        running.should_exit = True

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        tasks.start_soon(watch)
        while not running.started:
            await anyio.lowlevel.checkpoint()
        port = running.servers[0].sockets[0].getsockname()[1]
        try:
            yield f"http://127.0.0.1:{port}/{'sse' if sse else 'mcp'}", weather
        finally:
            weather.stop.set()


def world() -> tuple[MCPServer, list[str]]:
    server, ran = MCPServer("world"), list[str]()

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
    def large() -> str:
        """Large."""
        return "x" * 100_000

    return server, ran


def config(url: str, **entry: Any) -> GatewayConfig:
    return GatewayConfig.model_validate({"servers": {"world": {"url": url, "required": True, **entry}}})


def lease(gate: Gateway) -> Any:
    return gate.lease(trajectory="t", task="", seed=1)


@pytest.mark.parametrize("handshake_only", [False, True], ids=["modern", "handshake"])
async def test_calls_work_in_both_eras_and_carry_the_configured_headers(handshake_only: bool) -> None:
    server, _ = world()

    @server.tool()
    def who(ctx: Context) -> str:
        """Who."""
        return (ctx.request_context.meta or {})["mcp-rollout/trajectory"]

    async with served(server) as (url, weather):
        weather.handshake_only = handshake_only
        async with Gateway(config(url, headers={"Authorization": "Bearer k"})) as gate, lease(gate) as session:
            assert (await session.call("who", {})).text == "t"
        assert {request.get("authorization") for request in weather.requests} == {"Bearer k"}
        assert any("mcp-session-id" in request for request in weather.requests) == handshake_only


@pytest.mark.parametrize("handshake_only", [False, True], ids=["modern", "handshake"])
@pytest.mark.parametrize("json", [False, True], ids=["events", "json"])
async def test_an_answer_that_breaks_off_fails_its_call_and_not_the_connection(
    json: bool, handshake_only: bool
) -> None:
    server, ran = world()
    async with served(server, json=json) as (url, weather):
        weather.handshake_only = handshake_only
        async with Gateway(config(url)) as gate, lease(gate) as session:
            weather.spoil_next = "cut"
            with pytest.raises(DeliveryUnknown, match="world/put: sent, but never answered"):
                await session.call("put", {"text": "once"})
            assert ran == ["once"]
            assert (await session.call("put", {"text": "again"})).text == "stored"


async def test_a_read_only_call_whose_answer_was_lost_is_sent_again() -> None:
    server, ran = world()
    async with served(server) as (url, weather), Gateway(config(url)) as gate, lease(gate) as session:
        weather.spoil_next = "cut"
        assert (await session.call("get", {})).text == "here"
    assert ran == ["get", "get"]


async def test_an_http_error_leaves_the_outcome_unknown_whatever_its_status() -> None:
    server, ran = world()
    async with served(server) as (url, weather), Gateway(config(url)) as gate, lease(gate) as session:
        weather.spoil_next = "503"
        with pytest.raises(DeliveryUnknown, match="HTTP 503"):
            await session.call("put", {"text": "lost"})
        weather.spoil_next = "429"
        with pytest.raises(DeliveryUnknown, match="HTTP 429"):
            await session.call("put", {"text": "late"})
        weather.spoil_next = "429"
        assert (await session.call("get", {})).text == "here"  # it only reads, so it is sent again
    assert ran == ["get"]


async def test_an_answer_that_is_too_long_fails_its_call_alone() -> None:
    server, _ = world()
    async with (
        served(server) as (url, _),
        Gateway(config(url, max_message_bytes=50_000)) as gate,
        lease(gate) as session,
    ):
        with pytest.raises(ProtocolError, match=r"max_message_bytes"):
            await session.call("large", {})
        assert (await session.call("get", {})).text == "here"


async def test_a_stateless_session_goes_on_when_the_server_ended_the_protocol_session() -> None:
    server, ran = world()
    async with served(server) as (url, weather):
        weather.handshake_only = True
        async with Gateway(config(url)) as gate, lease(gate) as session:
            await session.call("put", {"text": "before"})
            weather.ended_sessions = {request.get("mcp-session-id", "") for request in weather.requests}
            assert (await session.call("put", {"text": "after"})).text == "stored"
    assert ran == ["before", "after"]


async def test_a_server_that_is_gone_is_unavailable() -> None:
    server, _ = world()
    async with served(server) as (url, weather), Gateway(config(url)) as gate, lease(gate) as session:
        weather.stop.set()
        await weather.stopped.wait()
        with pytest.raises(ServerUnavailable, match="world/put: ConnectError"):
            await session.call("put", {"text": "x"})


async def test_a_url_where_nobody_listens_fails_the_start_with_the_reason() -> None:
    said = r"world: 'http://127.0.0.1:9/mcp' .*ConnectError"
    with anyio.fail_after(20), pytest.raises(ServerUnavailable, match=said):
        async with Gateway(config("http://127.0.0.1:9/mcp?token=hunter2")):
            pass


async def test_a_url_that_never_answers_is_given_up_in_time() -> None:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        url = f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}/mcp"
        with anyio.fail_after(20), pytest.raises(ConnectTimeout):
            async with Gateway(config(url, start_timeout_s=0.2)):
                pass


async def test_calls_that_outlive_their_gateway_fail_with_its_errors_and_reconnect_nothing() -> None:
    server, released = MCPServer("world"), anyio.Event()
    calls, running = anyio.create_memory_object_stream[None](3)

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    async def wait() -> str:
        """Wait."""
        calls.send_nowait(None)
        await released.wait()
        return "late"

    errors: list[GatewayError] = []

    async def call(gate: Gateway) -> None:
        try:
            async with lease(gate) as session:
                await session.call("wait", {})
        except GatewayError as error:
            errors.append(error)

    with calls, running, capture_logs() as logs, anyio.fail_after(20):
        async with served(server) as (url, weather):
            gate = Gateway(config(url))
            async with anyio.create_task_group() as tasks:
                async with gate:
                    for _ in range(3):
                        tasks.start_soon(call, gate)
                    for _ in range(3):
                        await running.receive()
            connected = len(weather.requests)
            with pytest.raises(ServerUnavailable, match="the gateway is closing"):
                async with lease(gate):
                    pass
            assert len(weather.requests) == connected
            released.set()
    assert [error.code for error in errors] == ["delivery_unknown"] * 3
    assert all("the gateway is closing" in str(error) for error in errors)
    assert not [event for event in logs if event["event"] in ("server.tools_changed", "pool.reconnected")]


async def test_a_start_that_is_cancelled_is_no_server_without_tools() -> None:
    connected = anyio.Event()

    async def keep(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            connected.set()
            await anyio.sleep_forever()

    async def start(openings: Openings) -> None:
        with pytest.raises(ServerUnavailable, match="its start was cancelled"):
            await openings.open("world")

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        url = f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}/mcp"
        tasks.start_soon(listener.serve, keep)
        with anyio.fail_after(20):
            async with anyio.create_task_group() as starting, Openings(config(url)) as openings:
                starting.start_soon(start, openings)
                await connected.wait()
                openings.tasks.cancel_scope.cancel()
        tasks.cancel_scope.cancel()


async def test_the_older_event_stream_transport_works_and_its_end_ends_the_connection() -> None:
    server, ran = world()
    async with served(server, sse=True) as (url, weather):
        async with Gateway(config(url, type="sse")) as gate, lease(gate) as session:
            assert (await session.call("put", {"text": "x"})).text == "stored"
            weather.stop.set()
            await weather.stopped.wait()
            with anyio.fail_after(20), pytest.raises(ServerUnavailable):
                await session.call("put", {"text": "y"})
    assert ran == ["x"]
