"""mcp's session over HTTP: its messages travel on the gateway's own connections, and a fault ends one of them alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from mcp import MCPError
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from mcp_types import JSONRPCNotification, JSONRPCRequest, JSONRPCResponse
from memory import peak_growth
from serving import listening
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from mcp_rollout.gateway.config.models import ServerConfig
from mcp_rollout.gateway.transport.delivery import DELIVERY, Broke, Delivery
from mcp_rollout.gateway.transport.http import ReadStream, WriteStream, http_streams
from mcp_rollout.gateway.transport.http_connection import HttpConnections
from mcp_rollout.gateway.transport.link import Link

pytestmark = pytest.mark.anyio
HANDSHAKE = "2025-11-25"


class Server:
    """Answers each POST as its method's name says, and keeps what it was sent."""

    def __init__(self) -> None:
        self.posts: list[tuple[Any, dict[str, str]]] = []
        self.gets: list[dict[str, str]] = []
        self.deleted: list[dict[str, str]] = []
        self.begun, self.released, self.got = anyio.Event(), anyio.Event(), anyio.Event()
        self.at_once = self.most_at_once = self.streamed = 0
        self.flooding = False
        self.called, self.resumed, self.awaited = anyio.Event(), anyio.Event(), None
        methods = ["POST", "GET", "DELETE"]
        self.app = Starlette(routes=[Route("/mcp", self._answer, methods=methods)])

    async def _answer(self, request: Request) -> Response:
        headers = dict(request.headers)
        if request.method == "DELETE":
            self.deleted.append(headers)
            return Response()
        if request.method == "GET":
            self.gets.append(headers)
            if "last-event-id" in headers and self.called.is_set():
                self.resumed.set()
                return StreamingResponse(self._silence(), media_type="text/event-stream")
            return StreamingResponse(self._own_stream(len(self.gets)), media_type="text/event-stream")
        message = await request.json()
        self.posts.append((message, headers))
        response = {"jsonrpc": "2.0", "id": message.get("id"), "result": {"fine": True}}
        match message.get("method"):
            case "initialize":
                return JSONResponse(response, headers={"mcp-session-id": "s-1"})
            case "endless":
                return StreamingResponse(
                    self._endless(), media_type="application/json", headers={"content-length": "99"}
                )
            case "gone":
                return Response(status_code=404)
            case "refused":
                refusal = {"jsonrpc": "2.0", "id": None, "error": {"code": -32022, "message": "no", "data": [1]}}
                return JSONResponse(refusal, 400)
            case "text number":
                return JSONResponse({**response, "id": str(message["id"])})
            case "notifications/slow":
                self.at_once += 1
                self.most_at_once = max(self.most_at_once, self.at_once)
                await self.released.wait()
                self.at_once -= 1
                return Response(status_code=202)
            case "breaks off":
                self.called.set()
                return Response(b"retry: 0\nid: c-1\ndata: \n\n", media_type="text/event-stream")
            case "subscriptions/listen":
                return StreamingResponse(self._long(), media_type="text/event-stream")
            case None | "notifications/initialized" | "notifications/cancelled":
                return Response(status_code=202)
            case _:
                return JSONResponse(response)

    async def _endless(self) -> AsyncIterator[bytes]:
        yield b"{"
        self.begun.set()
        await anyio.sleep_forever()

    async def _long(self) -> AsyncIterator[bytes]:
        for _ in range(4):
            yield b'data: {"jsonrpc":"2.0","method":"notifications/message","params":{"x":"%s"}}\n\n' % (
                b"x" * (900 << 10)
            )
            self.streamed += 1
        while True:
            yield b"data: " + b"x" * (900 << 10)
            await anyio.lowlevel.checkpoint()  # what is written to a client that is gone is passed over at once

    async def _silence(self) -> AsyncIterator[bytes]:
        yield b": nothing yet\n\n"
        await anyio.sleep_forever()

    async def _own_stream(self, number: int) -> AsyncIterator[bytes]:
        if self.awaited is not None:
            self.got.set()
            await self.awaited.wait()
            yield b'data: {"jsonrpc":"2.0","id":99,"result":{}}\n\ndata: {"jsonrpc":"2.0","id":2,"result":{"n":2}}\n\n'
            await anyio.sleep_forever()
        while self.flooding:
            await anyio.lowlevel.checkpoint()
            yield b'data: {"jsonrpc":"2.0","id":7,"method":"ping","params":{"x":"%s"}}\n\n' % (b"x" * (100 << 10))
        if number == 1:
            yield b"retry: 0\nid: e-1\ndata: {]}\n\n"
            yield b'id: e-2\ndata: {"jsonrpc":"2.0","id":7,"method":"ping"}\n\n'
            return
        self.got.set()
        await anyio.sleep_forever()


@asynccontextmanager
async def streams(**entry: Any) -> AsyncIterator[tuple[ReadStream, WriteStream, Server, HttpConnections]]:
    server, connections = Server(), HttpConnections(4)
    async with listening(server.app) as address:
        config = ServerConfig.model_validate({"url": f"{address}/mcp", **entry})
        try:
            async with http_streams(config, Link(), connections=connections) as (read, write):
                yield read, write, server, connections
        finally:
            connections.close()


def request(method: str, number: int = 1, version: str = "") -> SessionMessage:
    metadata = ClientMessageMetadata(headers={"mcp-protocol-version": version}) if version else None
    return SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=number, method=method), metadata=metadata)


def notification(method: str, **params: Any) -> SessionMessage:
    return SessionMessage(JSONRPCNotification(jsonrpc="2.0", method=method, params=params or None))


async def answered(read: ReadStream, write: WriteStream, message: SessionMessage) -> Any:
    """The next message of the server, once `message` was sent."""
    received: list[SessionMessage] = []

    async def receive() -> None:
        received.append(await read.receive())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receive)
        await write.send(message)
    return received[0].message


async def test_an_answer_counts_though_an_earlier_one_to_the_same_request_broke_off() -> None:
    async with streams() as (read, write, _, _):
        with Delivery() as delivery:
            delivery.break_off(Broke.LINE, "the stream broke off")
            assert await answered(read, write, request("ping")) == JSONRPCResponse(
                jsonrpc="2.0", id=1, result={"fine": True}
            )
            assert delivery.broke is None


async def test_a_document_that_never_ends_is_given_up_with_its_request_and_holds_nothing() -> None:
    async with streams() as (_, write, server, connections):
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(write.send, request("endless"))
                await server.begun.wait()
                assert connections.slots.borrowed_tokens == 1
                tasks.cancel_scope.cancel()
        assert connections.slots.borrowed_tokens == 0 and connections.has_room
        assert not any(connections._idle.values())  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("method", "code", "broke"), [("gone", -32601, Broke.LINE), ("refused", -32022, Broke.CONTENT)]
)
async def test_a_request_that_is_turned_away_fails_alone_with_what_the_server_said(
    method: str, code: int, broke: Broke
) -> None:
    """mcp tells from the code whether the server speaks an earlier protocol."""
    async with streams() as (read, write, _, _):
        with Delivery() as delivery, pytest.raises(MCPError) as caught:
            await write.send(request(method))
        assert (caught.value.error.code, delivery.broke) == (code, broke)
        assert (await answered(read, write, request("ping", 2))).id == 2


async def test_a_response_has_the_id_that_mcp_gave_though_its_server_made_text_of_it() -> None:
    async with streams() as (read, write, _, _):
        assert (await answered(read, write, request("text number"))).id == 1


async def test_session_and_version_go_with_every_message_and_the_session_is_ended() -> None:
    async with streams() as (read, write, server, _):
        await answered(read, write, request("discover", version="2026-07-28"))
        await answered(read, write, request("initialize", 2))
        await answered(read, write, request("ping", 3, HANDSHAKE))
        await write.send(notification("notifications/cancelled", requestId=3))
        with anyio.fail_after(20):
            while len(server.posts) < 4:
                await anyio.lowlevel.checkpoint()
    said = [(headers.get("mcp-session-id"), headers.get("mcp-protocol-version")) for _, headers in server.posts]
    assert said == [(None, "2026-07-28"), (None, None), ("s-1", HANDSHAKE), ("s-1", HANDSHAKE)]
    assert [headers["mcp-session-id"] for headers in server.deleted] == ["s-1"]


async def test_from_2026_on_a_request_is_cancelled_by_its_connection_alone() -> None:
    async with streams() as (read, write, server, _):
        await answered(read, write, request("ping", 1, "2026-07-28"))
        await write.send(notification("notifications/cancelled", requestId=1))
        await answered(read, write, request("ping", 2, "2026-07-28"))
    assert [message["method"] for message, _ in server.posts] == ["ping", "ping"]


async def test_the_servers_own_stream_is_read_on_where_it_ended_and_a_bad_event_ends_nothing() -> None:
    async with streams() as (read, write, server, connections):
        await answered(read, write, request("initialize"))
        await write.send(notification("notifications/initialized"))
        with anyio.fail_after(20):
            ping = (await read.receive()).message
            await server.got.wait()
        assert isinstance(ping, JSONRPCRequest) and ping.method == "ping"
        assert read.last_context is not None and read.last_context.get(DELIVERY) is None
        assert [headers.get("last-event-id") for headers in server.gets] == [None, "e-2"]
        assert connections.slots.borrowed_tokens == 0  # it lasts as long as its session


@pytest.mark.parametrize("awaited", ["called", "resumed"])
async def test_a_response_on_the_servers_own_stream_is_that_of_a_request_whose_stream_ended(awaited: str) -> None:
    async with streams() as (read, write, server, _):
        server.awaited = getattr(server, awaited)
        await answered(read, write, request("initialize"))
        await write.send(notification("notifications/initialized"))
        with anyio.fail_after(20):
            await server.got.wait()
            assert (await answered(read, write, request("breaks off", 2))).result == {"n": 2}
            await answered(read, write, request("ping", 3))


async def test_messages_without_a_response_are_posted_eight_at_a_time_and_nothing_waits_for_them() -> None:
    async with streams() as (read, write, server, _):
        with anyio.fail_after(20):
            for _ in range(1100):
                await write.send(notification("notifications/slow"))
            assert (await answered(read, write, request("ping"))).id == 1
            while server.at_once < 8:
                await anyio.lowlevel.checkpoint()
            server.released.set()
            while len(server.posts) < 1001:
                await anyio.lowlevel.checkpoint()
            await answered(read, write, request("ping", 2))
        assert server.most_at_once == 8 and len(server.posts) == 1002  # no more than a thousand wait


async def test_a_subscription_may_last_for_ever_and_an_event_of_it_may_not() -> None:
    async with streams(max_message_bytes=1 << 20) as (_, write, server, connections):
        with Delivery() as delivery, anyio.fail_after(20), pytest.raises(MCPError, match="max_message_bytes"):
            await write.send(request("subscriptions/listen"))
        assert delivery.broke is Broke.CONTENT and server.streamed == 4
        assert connections.slots.borrowed_tokens == 0


async def test_what_comes_after_a_message_that_nobody_takes_waits_in_the_server() -> None:
    async with streams(max_message_bytes=1 << 20) as (read, write, server, _):
        server.flooding = True
        await answered(read, write, request("initialize"))
        with peak_growth() as growth, anyio.fail_after(60):
            await write.send(notification("notifications/initialized"))
            for _ in range(200):
                await read.receive()
                for _ in range(20):  # turns in which the socket is read
                    await anyio.lowlevel.checkpoint()
        assert growth() < 8 << 20
