"""Calls over streamable HTTP travel on connections of the gateway's own, with what its HTTP client would have sent."""

from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ToolAnnotations
from serving import App, listening, serving
from structlog.testing import capture_logs

from mcp_rollout import Gateway, GatewayConfig, GatewayError, Session
from mcp_rollout.gateway.config.models import ServerConfig
from mcp_rollout.gateway.errors import DeliveryUnknown, ProtocolError, ServerUnavailable
from mcp_rollout.gateway.leases import opening
from mcp_rollout.gateway.transport.http_exchange import Requests
from mcp_rollout.mcp_servers.kit import InProcess

pytestmark = pytest.mark.anyio
Message = MutableMapping[str, Any]
Front = Callable[[App, Message, Any, Any], Awaitable[None]]
"""In place of the server: gets it, and one request."""


def is_call(scope: Message) -> bool:
    return (b"mcp-method", b"tools/call") in scope.get("headers", ())


async def answer(send: Any, status: int, body: bytes = b"", **headers: bytes) -> None:
    given = [(name.replace("_", "-").encode(), value) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": given})
    await send({"type": "http.response.body", "body": body})


def world(ran: list[str]) -> MCPServer:
    server = MCPServer("world", log_level="ERROR")

    @server.tool()
    async def put(text: str) -> str:
        """Put."""
        ran.append(text)
        return f"{text} is stored"

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    async def get() -> str:
        """Get."""
        ran.append("get")
        return "here"

    @server.tool()
    async def report(text: str, ctx: Context) -> str:
        """Reports, which makes the answer a stream."""
        await ctx.report_progress(1)
        return f"{text} is stored"

    return server


@asynccontextmanager
async def fronted(
    front: Front, *, json: bool = False, query: str = "", **entry: Any
) -> AsyncIterator[tuple[Session, list[str]]]:
    """A session of a server behind `front`, and what its calls have stored."""
    ran: list[str] = []
    server = world(ran)
    sse = entry.get("type") == "sse"
    app: App = server.sse_app() if sse else server.streamable_http_app(json_response=json)

    async def before(scope: Message, receive: Any, send: Any) -> None:
        await (front(app, scope, receive, send) if scope["type"] == "http" else app(scope, receive, send))

    async with listening(before) as address:
        given = {"url": f"{address}/{'sse' if sse else 'mcp'}{query}", "required": True, **entry}
        async with (
            Gateway(GatewayConfig.model_validate({"servers": {"world": given}})) as gateway,
            gateway.lease(trajectory="t", task=None, seed=1) as session,
        ):
            yield session, ran


class Noting:
    """Notes the headers of the calls; `from` is the client's port, `path` the URL's path and query."""

    def __init__(self, *, redirect: bytes = b"", cookie: bytes = b"") -> None:
        self._redirect, self._cookie = redirect, cookie
        self.calls: list[dict[str, str]] = []

    async def __call__(self, app: App, scope: Message, receive: Any, send: Any) -> None:
        if is_call(scope):
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            path = f"{scope['path']}?{scope['query_string'].decode()}"
            self.calls.append({**headers, "from": str(scope["client"][1]), "path": path})
            if self._redirect and scope["path"] == "/mcp":
                return await answer(send, 307, location=self._redirect)

        async def with_cookie(message: Message) -> None:
            if self._cookie and message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"set-cookie", self._cookie)]
            await send(message)

        await app({**scope, "path": "/mcp"}, receive, with_cookie)


@pytest.mark.parametrize("json", [True, False], ids=["documents", "event streams"])
async def test_calls_one_after_the_other_use_one_connection(json: bool) -> None:
    front = Noting()
    async with fronted(front, json=json, query="?key=k", headers={"X-Team": "blue"}) as (session, ran):
        for number in range(20):
            assert (await session.call("put", {"text": f"{number}"})).text == f"{number} is stored"
    assert len(ran) == 20 and len({call["from"] for call in front.calls}) == 1
    assert {(call["x-team"], call["path"], call["mcp-name"]) for call in front.calls} == {("blue", "/mcp?key=k", "put")}


async def test_calls_at_a_time_use_one_connection_each_and_the_next_ones_use_them_again() -> None:
    front = Noting()
    async with fronted(front, json=True) as (session, ran):
        for _ in range(3):
            async with anyio.create_task_group() as tasks:
                for number in range(8):
                    tasks.start_soon(session.call, "put", {"text": f"{number}"})
    assert len(ran) == 24 and len({call["from"] for call in front.calls}) <= 8


@pytest.mark.parametrize("json", [False, True], ids=["events", "json"])
async def test_an_answer_that_breaks_off_fails_its_call_and_not_the_connection(json: bool) -> None:
    """In the era of 2026; `test_at_most_once` has all breaks of the handshake's."""
    breaks: list[str] = []

    async def front(app: App, scope: Message, receive: Any, send: Any) -> None:
        async def cut(message: Message) -> None:
            # The tool has run; its answer is announced and then never comes.
            if message["type"] == "http.response.start":
                kept = [(key, value) for key, value in message["headers"] if key != b"content-length"]
                await send({**message, "headers": [*kept, (b"content-length", b"99999")]})
            else:
                await send({"type": "http.response.body", "body": b"{", "more_body": True})
                raise ConnectionAbortedError

        await app(scope, receive, cut if is_call(scope) and breaks and breaks.pop() else send)

    async with fronted(front, json=json) as (session, ran):
        breaks.append("put")
        with pytest.raises(DeliveryUnknown, match="world/put: sent, but never answered"):
            await session.call("put", {"text": "once"})
        breaks.append("get")
        assert (await session.call("get", {})).text == "here"  # it only reads, so it is sent again
    assert ran == ["once", "get", "get"]


async def test_calls_that_outlive_their_gateway_fail_with_its_errors_and_reconnect_nothing() -> None:
    calls, running = anyio.create_memory_object_stream[None](3)
    app, released, errors, requests = world([]).streamable_http_app(), anyio.Event(), list[GatewayError](), 0

    async def front(scope: Message, receive: Any, send: Any) -> None:
        nonlocal requests
        requests += scope["type"] == "http"
        if is_call(scope):
            calls.send_nowait(None)
            await released.wait()
        await app(scope, receive, send)

    async def call(gate: Gateway) -> None:
        try:
            async with gate.lease(trajectory="t", task=None, seed=1) as session:
                await session.call("get", {})
        except GatewayError as error:
            errors.append(error)

    with calls, running, capture_logs() as logs, anyio.fail_after(20):
        async with listening(front) as address:
            entry = {"url": f"{address}/mcp", "required": True}
            gate = Gateway(GatewayConfig.model_validate({"servers": {"world": entry}}))
            async with anyio.create_task_group() as tasks:
                async with gate:
                    for _ in range(3):
                        tasks.start_soon(call, gate)
                    for _ in range(3):
                        await running.receive()
            connected = requests
            with pytest.raises(ServerUnavailable, match="the gateway is closing"):
                async with gate.lease(trajectory="t", task=None, seed=1):
                    pass
            assert requests == connected
            released.set()
    assert [error.code for error in errors] == ["delivery_unknown"] * 3
    assert all("the gateway is closing" in str(error) for error in errors)
    assert not [event for event in logs if event["event"] in ("server.tools_changed", "pool.reconnected")]


async def test_calls_that_wait_for_a_descriptor_are_sent_in_the_order_in_which_they_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opening, "http_posts_at_once", lambda: 4)
    server, ran, four_arrived = MCPServer("world", log_level="ERROR"), list[int](), anyio.Event()

    @server.tool()
    async def put(number: int) -> str:
        """Answer together with three others, so that four are under way."""
        nonlocal four_arrived
        ran.append(number)
        arrived = four_arrived
        if len(ran) % 4 == 0:
            four_arrived = anyio.Event()
            arrived.set()
        await arrived.wait()
        return f"{number}"

    async with serving(server, "http-handshake") as entry:  # the later protocol holds a subscription open
        config = GatewayConfig.model_validate({"servers": {"world": entry}})
        async with Gateway(config) as gateway, gateway.lease(trajectory="t", task=None, seed=1) as session:
            async with anyio.create_task_group() as tasks:
                for number in range(40):
                    tasks.start_soon(session.call, "put", {"number": number})
    assert sorted(ran) == [*range(40)]
    # One that is sent while others are under way overtakes these at most.
    assert all(place >= number - 3 for place, number in enumerate(ran)), ran


FOREIGN = b'data: {"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"of another"}]}}\n\n'


@pytest.mark.parametrize("number", [b"123456789", b'"another"'])
@pytest.mark.parametrize("alone", [False, True], ids=["before its own", "in its place"])
async def test_a_response_to_another_request_in_a_stream_is_not_the_calls(alone: bool, number: bytes) -> None:
    wrong = [FOREIGN % number]

    async def front(app: App, scope: Message, receive: Any, send: Any) -> None:
        async def changed(message: Message) -> None:
            if message["type"] == "http.response.body":
                message["body"] = (wrong.pop() if wrong else b"") + (b"" if alone else message["body"])
            await send(message)

        await app(scope, receive, changed if is_call(scope) else send)

    async with fronted(front) as (session, _):
        if alone:
            with pytest.raises(ProtocolError, match="not a response to this request"):
                await session.call("report", {"text": "x"})
        else:
            assert (await session.call("report", {"text": "x"})).text == "x is stored"


@pytest.mark.parametrize("kind", [b"text/event-stream", b"application/json"])
async def test_a_connection_on_which_the_response_to_another_request_came_carries_no_further_one(kind: bytes) -> None:
    """It may be out of step: the next call would get what belongs to this one, and follow it where it is a redirect."""
    wrong, ports = FOREIGN % b"123456789", list[int]()
    body = wrong if kind == b"text/event-stream" else wrong.removeprefix(b"data: ").strip()

    async def front(app: App, scope: Message, receive: Any, send: Any) -> None:
        if is_call(scope):
            ports.append(scope["client"][1])
            if len(ports) == 1:
                return await answer(send, 200, body, content_type=kind, content_length=b"%d" % len(body))
        await app(scope, receive, send)

    async with fronted(front, json=True) as (session, ran):
        with pytest.raises(ProtocolError, match="not a response to this request"):
            await session.call("put", {"text": "x"})
        for text in "yz":
            assert (await session.call("put", {"text": text})).text == f"{text} is stored"
    assert ports[0] != ports[1] == ports[2] and ran == ["y", "z"]


async def test_a_redirect_on_the_origin_is_followed_and_the_call_runs_once() -> None:
    front = Noting(redirect=b"/elsewhere")
    async with fronted(front) as (session, ran):
        assert (await session.call("put", {"text": "x"})).text == "x is stored"
    assert [call["path"] for call in front.calls] == ["/mcp?", "/elsewhere?"] and ran == ["x"]


@pytest.mark.parametrize(("kind", "most"), [("itself", 1), ("a loop of two", 2), ("ever new places", 2)])
async def test_a_call_that_is_redirected_again_and_again_is_sent_once_more_at_most(kind: str, most: int) -> None:
    """Each place may have run it: the server only says that it did not."""
    posts: list[str] = []

    async def front(app: App, scope: Message, receive: Any, send: Any) -> None:
        if not is_call(scope):
            return await app(scope, receive, send)
        posts.append(scope["path"])
        there = {"itself": "/mcp", "a loop of two": "/b" if scope["path"] == "/mcp" else "/mcp"}
        await answer(send, 307, location=there.get(kind, f"/{len(posts)}").encode())

    async with fronted(front) as (session, _):
        with pytest.raises(DeliveryUnknown):
            await session.call("put", {"text": "x"})
    assert len(posts) == most


async def test_a_call_over_sse_is_sent_on_once_at_most() -> None:
    posts, redirecting = list[str](), False

    async def front(app: App, scope: Message, receive: Any, send: Any) -> None:
        if not redirecting or scope["method"] != "POST":
            return await app(scope, receive, send)
        posts.append((await receive())["body"].decode())
        await answer(send, 307, location=b"/%d" % len(posts))

    async with fronted(front, type="sse") as (session, _):
        redirecting = True
        with pytest.raises(DeliveryUnknown):
            await session.call("put", {"text": "x"})
        redirecting = False
    assert sum('"tools/call"' in body for body in posts) == 2


async def test_calls_go_straight_to_where_the_server_has_redirected_earlier_requests() -> None:
    """A chain of two redirects is followed for what may run twice; a call is then not redirected at all."""
    places: list[str] = []

    async def front(app: App, scope: Message, receive: Any, send: Any) -> None:
        if is_call(scope):
            places.append(scope["path"])
        if scope["path"] == "/c":
            return await app({**scope, "path": "/mcp"}, receive, send)
        await answer(send, 307, location=b"/b" if scope["path"] == "/mcp" else b"/c")

    async with fronted(front) as (session, _):
        for _ in range(2):
            assert (await session.call("put", {"text": "x"})).text == "x is stored"
    assert places == ["/c", "/c"]


async def test_a_cookie_that_an_answer_sets_goes_with_the_next_call() -> None:
    front = Noting(cookie=b"node=7; Path=/")
    async with fronted(front) as (session, _):
        await session.call("put", {"text": "x"})
        await session.call("put", {"text": "y"})
    assert front.calls[1]["cookie"] == "node=7"


def test_cookies_are_bounded_in_number_and_length() -> None:
    headers = [("set-cookie", f"c{number}=1") for number in range(30)]
    cookies = Requests(ServerConfig(url="http://a.test")).cookies

    def keep(*given: tuple[str, str]) -> int:
        request = httpx2.Request("POST", "http://a.test")
        cookies.extract_cookies(httpx2.Response(200, headers=list(given), request=request))
        return len(cookies)

    assert keep(*headers) == 30
    assert keep(*headers * 3) == 30  # not even read
    assert keep(("set-cookie", "long=" + "x" * 20_000)) == 30
    assert keep(("set-cookie", "one=1")) == 31
    assert keep(*[(name, "d" + value) for name, value in headers]) == 0


@pytest.mark.parametrize("transport", ["http", "in_lines"])
async def test_where_a_program_traces_each_call_has_a_span_whose_trace_the_server_is_told(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    provider, spans = sdk.TracerProvider(), memory.InMemorySpanExporter()
    provider.add_span_processor(export.SimpleSpanProcessor(spans))
    server, told = MCPServer("world", log_level="ERROR"), list[Any]()

    @server.tool()
    async def put(text: str, ctx: Context) -> str:
        """Put."""
        told.append((ctx.request_context.meta or {}).get("traceparent"))
        return text

    @asynccontextmanager
    async def entered() -> AsyncIterator[dict[str, Any]]:
        if transport == "in_lines":
            yield {"factory": "unused:unused", "required": True}
        else:
            async with serving(server, transport) as entry:
                yield entry

    async with entered() as entry:
        config = GatewayConfig.model_validate({"servers": {"world": entry}})
        connect = (lambda *_: InProcess(server)) if transport == "in_lines" else None
        async with (
            Gateway(config, connect=connect) as gateway,
            gateway.lease(trajectory="t", task=None, seed=1) as session,
        ):
            assert (await session.call("put", {"text": "before"})).text == "before"
            monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
            assert (await session.call("put", {"text": "x"})).text == "x"
            refused = await session.call("put", {"text": 1})
            monkeypatch.undo()
    ended = [span for span in spans.get_finished_spans() if span.name == "MCP send tools/call put"]
    spans.shutdown()  # a tracer keeps the first provider that it meets, and with it every later span of this process
    assert told[0] is None and len(ended) == len(told) - 1 and refused.is_error == (len(ended) == 1)
    assert told[1].split("-")[2] == f"{ended[0].context.span_id:016x}"
    assert ended[0].attributes["mcp.method.name"] == "tools/call"
