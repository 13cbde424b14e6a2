"""What a server does wrong over HTTP, beside its answers to calls, ends one request and is bounded."""

from __future__ import annotations

import asyncio
import contextvars
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from breaking import BreakingHttp, BreakingSse, Request, begin_stream, breaking, chunk, respond
from mcp import MCPError
from mcp.shared import jsonrpc_dispatcher
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest
from structlog.testing import capture_logs

from mcp_rollout import Gateway, GatewayConfig, Session
from mcp_rollout.gateway.config.models import ServerConfig
from mcp_rollout.gateway.errors import DeliveryUnknown, ServerUnavailable, Unauthorized
from mcp_rollout.gateway.leases.opening import Openings
from mcp_rollout.gateway.transport.delivery import Broke, Delivery
from mcp_rollout.gateway.transport.http import ReadStream, WriteStream, http_streams
from mcp_rollout.gateway.transport.http_answer import HttpFault
from mcp_rollout.gateway.transport.http_connection import HttpConnections
from mcp_rollout.gateway.transport.http_exchange import Exchanges, Requests
from mcp_rollout.gateway.transport.link import Link

pytestmark = pytest.mark.anyio
LIMIT = 1 << 20
Does = Callable[[Request, asyncio.StreamWriter], Awaitable[None]]


class Odd(BreakingHttp):
    """A server with an answer of its own to some HTTP methods, or methods of JSON-RPC."""

    def __init__(self, rng: random.Random, unread: float = 0.0) -> None:
        super().__init__(rng, unread)
        self.does: dict[str, Does] = {}
        self.seen: list[str] = []
        self.cut = False

    async def _serve(self, request: Request, writer: asyncio.StreamWriter) -> None:
        is_post = request.method == "POST" and request.path == "/mcp"
        name = request.message.get("method", "") if is_post else request.method
        if request.path == "/mcp":
            self.seen.append(name)
        if request.path == "/mcp" and (own := self.does.get(name)) is not None:
            return await own(request, writer)
        await super()._serve(request, writer)

    async def endless(self, request: Request, writer: asyncio.StreamWriter) -> None:
        """A document of 64 MB."""
        await begin_stream(writer, "application/json")
        try:
            for _ in range(64):
                await chunk(writer, b"x" * LIMIT)
        except ConnectionError:
            self.cut = True

    async def hang(self, request: Request, writer: asyncio.StreamWriter) -> None:
        await writer.wait_closed()


def config_of(url: str, **entry: Any) -> GatewayConfig:
    return GatewayConfig.model_validate({"servers": {"world": {"url": url, "required": True, **entry}}})


@asynccontextmanager
async def playing(server: Odd | Prefixed, **entry: Any) -> AsyncIterator[Session]:
    async with Gateway(config_of(**{**server.entry, **entry})) as gateway:
        async with gateway.lease(trajectory="t", task=None, seed=1) as session:
            yield session


@asynccontextmanager
async def odd(**does: str) -> AsyncIterator[Odd]:
    async with breaking(Odd, "odd", unread=0.0) as server:
        assert isinstance(server, Odd)
        for name, how in does.items():
            server.does[name] = getattr(server, how)
        yield server


@asynccontextmanager
async def streams(server: Odd, **entry: Any) -> AsyncIterator[tuple[ReadStream, WriteStream, HttpConnections]]:
    """Those of mcp's session, with the answers to its requests passed over."""
    config, connections = ServerConfig.model_validate({**server.entry, **entry}), HttpConnections(4)
    async with http_streams(config, Link(), connections=connections) as (read, write):
        async with anyio.create_task_group() as tasks:

            async def receive() -> None:
                async for _ in read:
                    pass

            tasks.start_soon(receive)
            yield read, write, connections
            tasks.cancel_scope.cancel()


def request(method: str) -> SessionMessage:
    return SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=1, method=method))


async def put(session: Session) -> str:
    return (await session.call("put", {"id": "x"})).text


async def until(condition: Callable[[], object]) -> None:
    with anyio.fail_after(20):
        while not condition():
            await anyio.lowlevel.checkpoint()


async def test_a_document_in_place_of_a_subscription_has_the_limit() -> None:
    async with odd() as server:
        server.does["subscriptions/listen"] = server.endless
        async with streams(server, max_message_bytes=LIMIT) as (_, write, _):
            await refused(write, "max_message_bytes")
            await until(lambda: server.cut)


async def test_a_document_in_place_of_the_stream_of_sse_has_the_limit() -> None:
    async with odd(GET="endless") as server:
        with pytest.raises(ServerUnavailable, match="max_message_bytes"):
            async with playing(server, transport="sse", max_message_bytes=LIMIT):
                pass
        await until(lambda: server.cut)


async def refused(write: WriteStream, match: str) -> None:
    with anyio.fail_after(20), pytest.raises(MCPError, match=match):
        await write.send(request("subscriptions/listen"))


async def test_a_subscription_whose_answer_does_not_begin_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_rollout.gateway.transport.http._SILENT_S", 0.05)
    async with odd() as server:
        server.does["subscriptions/listen"] = server.hang
        async with streams(server) as (_, write, _):
            await refused(write, "silent")


async def test_a_server_that_does_not_answer_discover_is_asked_for_the_handshake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mcp_rollout.gateway.transport.http.DISCOVER_TIMEOUT_SECONDS", 0.05)
    async with odd() as server:
        server.does["server/discover"] = server.hang
        async with playing(server, start_timeout_s=20) as session:
            assert await put(session) == "x"


@pytest.mark.parametrize("value", ["\u20ac", "a\r\nb"])
def test_a_header_that_cannot_be_sent_is_a_fault_of_its_request_and_is_not_quoted(value: str) -> None:
    requests = Requests(ServerConfig.model_validate({"url": "http://127.0.0.1/mcp"}))
    with pytest.raises(HttpFault, match="cannot be sent") as caught:
        requests.encode("POST", requests.url, {"x-a": value}, b"{}")
    assert caught.value.broke is Broke.CONTENT and value not in caught.value.reason
    assert ("'x-a' has a line end" in caught.value.reason) is (value != "\u20ac")


async def test_the_end_of_a_session_takes_no_slot_and_nothing_else_is_sent_from_then_on() -> None:
    async with odd() as server, streams(server) as (_, write, connections):
        await write.send(request("initialize"))
        exchanges: Exchanges = write._exchanges  # pyright: ignore[reportPrivateUsage]
        exchanges.close("over")
        with pytest.raises(HttpFault, match="over"):
            await exchanges.open("POST", {}, b"{}", Delivery())
        for _ in range(4):
            connections.slots.acquire_on_behalf_of_nowait(object())
    assert server.seen == ["initialize", "DELETE"]


async def test_nothing_follows_the_end_of_a_session_while_a_call_is_under_way() -> None:
    async def call(request: Request, writer: asyncio.StreamWriter) -> None:
        await begin_stream(writer)
        await chunk(writer, b"retry: 0\nid: 5\ndata: \n\n")
        begun.set()
        await writer.wait_closed()

    begun, outcomes = anyio.Event(), list[BaseException]()

    async def put_away(session: Session) -> None:
        try:
            await put(session)
        except Exception as error:
            outcomes.append(error)

    with capture_logs() as logs:
        async with odd(DELETE="hang") as server:
            server.does["tools/call"] = call
            async with anyio.create_task_group() as tasks:
                async with playing(server, close_timeout_s=3) as session:
                    tasks.start_soon(put_away, session)
                    await begun.wait()
                    (connection,) = session._sending.connections.values()  # pyright: ignore[reportPrivateUsage]
                    connection.end("it is over")
                    await until(lambda: outcomes)
    assert isinstance(outcomes[0], DeliveryUnknown) and server.seen[-1] == "DELETE"
    assert not [each for each in logs if each["event"] == "connection.broke"]


async def test_a_start_that_is_not_authorized_says_so_whatever_its_document_says() -> None:
    async def no(request: Request, writer: asyncio.StreamWriter) -> None:
        error = {"jsonrpc": "2.0", "id": request.message["id"], "error": {"code": -32001, "message": "no"}}
        await respond(writer, 401, json.dumps(error).encode())

    async with odd() as server:
        server.does["server/discover"] = server.does["initialize"] = no
        with pytest.raises(Unauthorized, match="HTTP 401"):
            async with playing(server):
                pass


async def test_a_start_that_fails_says_why_though_the_end_of_its_session_is_not_answered() -> None:
    async def no(request: Request, writer: asyncio.StreamWriter) -> None:
        error = {"jsonrpc": "2.0", "id": request.message["id"], "error": {"code": -32000, "message": "database down"}}
        await respond(writer, 200, json.dumps(error).encode())

    async with odd(DELETE="hang") as server:
        server.does["tools/list"] = no
        with pytest.raises(ServerUnavailable, match="database down"):
            async with playing(server, start_timeout_s=2):
                pass


async def test_a_call_that_broke_is_unknown_though_mcp_wrote_it_in_another_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dispatcher: Any = jsonrpc_dispatcher.JSONRPCDispatcher
    write = dispatcher._write

    async def elsewhere(self: Any, message: Any, metadata: Any = None) -> None:
        await asyncio.get_running_loop().create_task(write(self, message, metadata), context=contextvars.Context())

    monkeypatch.setattr("mcp_rollout.gateway.sdk.is_known", False)
    monkeypatch.setattr(dispatcher, "_write", elsewhere)
    async with odd() as server, playing(server) as session:
        server.plan["x"] = ["closed after running"]
        with pytest.raises(DeliveryUnknown, match="RemoteProtocolError"):
            await put(session)
        assert server.ran["x"] == 1


async def test_a_url_where_nobody_listens_fails_the_start_with_the_reason() -> None:
    said = r"world: 'http://127.0.0.1:9/mcp' .*ConnectError"
    with anyio.fail_after(20), pytest.raises(ServerUnavailable, match=said):
        async with Gateway(config_of("http://127.0.0.1:9/mcp?token=hunter2")):
            pass


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
            async with anyio.create_task_group() as starting, Openings(config_of(url)) as openings:
                starting.start_soon(start, openings)
                await connected.wait()
                openings.tasks.cancel_scope.cancel()
        tasks.cancel_scope.cancel()


class Prefixed(BreakingSse):
    """Behind a proxy that adds a prefix, of which the server knows nothing: the addresses that it names lack it."""

    endpoint = "/messages"

    async def _serve(self, request: Request, writer: asyncio.StreamWriter) -> None:
        if request.method == "GET":
            await begin_stream(writer)
            await chunk(writer, b"event: endpoint\ndata: %s?session=secret-1\n\n" % self.endpoint.encode())
        else:
            await respond(writer, 404, b"", kind="")


@pytest.mark.parametrize(
    ("endpoint", "problem"),
    [
        ("/messages", "HTTP 404 Whatever at {origin}/messages, which the server's event stream names for messages"),
        (
            "http://me:pass@elsewhere.test/messages",
            "the event stream names an endpoint of another origin than {origin}/sse: elsewhere.test/messages",
        ),
    ],
)
async def test_an_event_stream_that_names_a_wrong_address_is_told_by_that_address(endpoint: str, problem: str) -> None:
    async with breaking(Prefixed, "prefixed", unread=0.0) as server:
        assert isinstance(server, Prefixed)
        server.endpoint = endpoint
        with pytest.raises(ServerUnavailable) as caught:
            async with playing(server):
                pass
        said = str(caught.value)
        assert problem.format(origin=server.origin) in said and "secret-1" not in said and "pass@" not in said
