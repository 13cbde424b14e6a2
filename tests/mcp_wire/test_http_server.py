"""One connection of a server, by its bytes: what it holds, for how long, and what a defect of the site does to it."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
import uvicorn

from mcp_rollout.mcp_wire import http_connections
from mcp_rollout.mcp_wire.admission import Names
from mcp_rollout.mcp_wire.http_connections import Connections
from mcp_rollout.mcp_wire.http_request import DirectAnswer, Request
from mcp_rollout.mcp_wire.http_server import HttpConnection, protocol

pytestmark = pytest.mark.anyio


class Known:
    """Who asks; there is one for each request, which nothing else refers to."""


class ExampleSite:
    def __init__(self) -> None:
        self.known: list[weakref.ref[Known]] = []
        self.requests: list[Request] = []
        self.began, self.left = anyio.Event(), anyio.Event()

    def admit(self, request: Request) -> Known:
        if request.target == b"/admit-defect":
            raise KeyError("admit")
        known = Known()
        self.known.append(weakref.ref(known))
        return known

    def may_answer(self, request: Request) -> bool:
        return request.target != b"/app"

    async def answer(self, request: Request) -> bool:
        match request.target:
            case b"/defect":
                raise KeyError("answer")
            case b"/stream-defect":
                request.send_event(b"data: 1\n\n")
                raise KeyError("stream")
            case b"/wait":
                request.on_disconnect = self.left.set
                self.began.set()
                await self.left.wait()
            case b"/keep":
                self.requests.append(request)
                request.respond(DirectAnswer(200, b"{}"))
            case b"/long":
                request.respond(DirectAnswer(200, b" " * 20_000_000))
            case b"/pass":
                return False
            case _:
                request.respond(DirectAnswer(200, b"%d" % len(request.body)))
        return True


async def application(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
    """Answers before the body arrives."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


class Server:
    def __init__(self, port: int, site: ExampleSite, among: Connections, uvicorn: uvicorn.Server) -> None:
        self.port, self.site, self.among, self.uvicorn = port, site, among, uvicorn

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[anyio.abc.SocketStream]:
        async with await anyio.connect_tcp("127.0.0.1", self.port) as stream:
            with anyio.fail_after(20):
                yield stream

    async def everything(self, sent: bytes) -> bytes:
        found = b""
        async with self.connected() as stream:
            await stream.send(sent)
            try:
                while True:
                    found += await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return found

    async def until_none_is_left(self) -> None:
        with anyio.fail_after(20):
            while self.uvicorn.server_state.connections or self.uvicorn.server_state.tasks:
                await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def serving(receive_s: float = 30) -> AsyncIterator[Server]:
    site, among = ExampleSite(), Connections(receive_s=receive_s, unadmitted=100)
    config = uvicorn.Config(
        application,
        port=0,
        http=protocol(site, among, direct_bytes=1 << 23),
        lifespan="off",
        ws="none",
        log_config=None,
    )
    server = uvicorn.Server(config)
    tasks = [asyncio.create_task(server.serve()), asyncio.create_task(among.sweep())]
    try:
        with anyio.fail_after(20):
            while not server.started:
                await anyio.lowlevel.checkpoint()
        yield Server(server.servers[0].sockets[0].getsockname()[1], site, among, server)
    finally:
        server.should_exit = server.force_exit = True
        await tasks[0]
        tasks[1].cancel()


def post(target: str, *headers: str, body: bytes = b"x") -> bytes:
    head = [f"POST {target} HTTP/1.1", "Host: a", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(head).encode() + body


async def answers(stream: anyio.abc.ByteReceiveStream, number: int) -> bytes:
    found = b""
    while found.count(b"HTTP/1.1 ") < number or not found.endswith((b"\r\n\r\n", b"1", b"2")):
        found += await stream.receive()
    return found


@pytest.mark.parametrize("target", ["/direct", "/pass", "/app"])
async def test_a_closed_connection_leaves_nothing_behind(target: str) -> None:
    async with serving() as server:
        gc.collect()
        gc.disable()
        try:
            async with server.connected() as stream:
                await stream.send(post(target))
                await answers(stream, 1)
            await server.until_none_is_left()
            await anyio.lowlevel.checkpoint()
            assert [known() for known in server.site.known] == [None]
            assert not [each for each in gc.get_objects() if issubclass(type(each), HttpConnection)]
        finally:
            gc.enable()


@pytest.mark.parametrize("target", ["/direct", "/pass", "/app"])
async def test_an_idle_connection_keeps_nothing_of_its_last_request(target: str) -> None:
    async with serving() as server, server.connected() as stream:
        gc.disable()
        try:
            await stream.send(post(target))
            await answers(stream, 1)
            while server.uvicorn.server_state.tasks:
                await anyio.lowlevel.checkpoint()
            assert [known() for known in server.site.known] == [None]
        finally:
            gc.enable()


async def test_a_request_that_outlives_its_answer_has_no_body() -> None:
    async with serving() as server, server.connected() as stream:
        await stream.send(post("/keep") + post("/direct", body=b"xy"))
        await answers(stream, 2)
        assert server.site.requests[0].body == b""


UPGRADE = "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk"


@pytest.mark.parametrize("target", ["/direct", "/pass"])
async def test_a_request_that_offers_another_protocol_is_served_as_any_other(
    target: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as server:
        sent = post(target, *UPGRADE) + post("/app", *UPGRADE)
        for parts in ([sent], [bytes([byte]) for byte in sent]):
            async with server.connected() as stream:
                for part in parts:
                    await stream.send(part)
                assert (await answers(stream, 2)).count(b"HTTP/1.1 200 ") == 2
                await stream.send(post("/direct", *UPGRADE, body=b"xy"))
                assert (await answers(stream, 1)).endswith(b"\r\n\r\n2")
    assert "upgrade" not in caplog.text.lower()


async def test_a_tunnel_is_refused() -> None:
    async with serving() as server:
        assert (await server.everything(b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n")).startswith(b"HTTP/1.1 405 ")


@pytest.mark.parametrize("end", [b"", b"Host: a\r\n\r\n"])
@pytest.mark.parametrize("lines", [b"a:b\r\n" * 102, b"a:" + b"b" * 16_000 + b"\r\n" + b"c:" + b"d" * 17_000 + b"\r\n"])
async def test_the_bound_of_a_head_holds_in_lines_and_bytes_however_it_arrives(lines: bytes, end: bytes) -> None:
    async with serving() as server:
        assert (await server.everything(b"POST /direct HTTP/1.1\r\n" + lines + end)).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("rest", [b"", b"x"])
async def test_a_connection_that_was_answered_before_its_body_arrived_has_a_clock(
    rest: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connections, "KEEP_ALIVE_S", 0.1)
    async with serving(receive_s=0.2) as server, server.connected() as stream:
        await stream.send(post("/app")[:-1])
        await answers(stream, 1)
        await stream.send(rest)
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await stream.receive()


@pytest.mark.parametrize("behind", [post("/direct"), post("/app"), post("/direct", "Host: b"), b"not HTTP\r\n\r\n"])
async def test_a_disconnect_is_noticed_behind_a_request_that_was_sent_ahead(behind: bytes) -> None:
    async with serving() as server:
        async with server.connected() as stream:
            await stream.send(post("/wait"))
            await server.site.began.wait()
            await stream.send(behind)
        with anyio.fail_after(20):
            await server.site.left.wait()


async def test_an_answer_that_is_not_read_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "KEEP_ALIVE_S", 0.1)
    async with serving(receive_s=0.2) as server, server.connected() as stream:
        await stream.send(post("/long") * 3)
        await server.until_none_is_left()
        # The second request waits until the first answer is read.
        assert len(server.site.known) == 3
        assert server.uvicorn.server_state.total_requests <= 1


async def test_a_defect_of_the_server_is_said_and_ends_one_request(caplog: pytest.LogCaptureFixture) -> None:
    # Another server of this process may have set its level, and cut it off from the root.
    caplog.set_level(logging.ERROR, logger="uvicorn.error")
    log = logging.getLogger("uvicorn.error")
    log.addHandler(caplog.handler)
    async with serving() as server:
        async with server.connected() as stream:
            await stream.send(post("/defect") + post("/direct", body=b"xy"))
            found = await answers(stream, 2)
            assert [each[:3] for each in found.split(b"HTTP/1.1 ")[1:]] == [b"500", b"200"]
        begun = await server.everything(post("/stream-defect"))
        assert b"data: 1" in begun
        assert not begun.endswith(b"0\r\n\r\n")
        assert (await server.everything(post("/admit-defect"))).startswith(b"HTTP/1.1 500 ")
    log.removeHandler(caplog.handler)
    said = {str(each.exc_info[1]) for each in caplog.records if each.exc_info is not None}
    assert said == {"'answer'", "'stream'", "'admit'"}


MALFORMED = (
    *("", ":80", "localhost:", "localhost:80:evil", "localhost:80@x", "x@localhost", "localhost:+80", "localhost: 80"),
    *("localhost:99999", "localhost:\u0661", "localhost/x", "localhost?x", "localhost#x", "localhost%2e", "local host"),
    *("[::1", "::1", "[::1]x", "[::1]:", "[::1%25lo]", "[127.0.0.1]", "[localhost]", "localhost\n", "localhost,x"),
)


@pytest.mark.parametrize("host", MALFORMED)
def test_a_malformed_host_names_none(host: str) -> None:
    names = Names("127.0.0.1", ["::1"])
    assert not names.has(host.encode("utf-8")) and not names.has_origin(f"http://{host}".encode())


@pytest.mark.parametrize("host", ["localhost", "LocalHost:80", "127.0.0.1:65535", "[::1]", "[::1]:8080", "a_b.test"])
def test_a_host_is_named_with_and_without_a_port(host: str) -> None:
    names = Names("127.0.0.1", ["a_b.test"])
    assert names.has(host.encode()) and names.has_origin(f"https://{host}".encode())
    assert not names.has_origin(f"ftp://{host}".encode()) and not names.has(f"evil.{host}".encode())
