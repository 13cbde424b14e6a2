"""Calls over streamable HTTP travel on connections of the gateway's own, with what its HTTP client would have sent."""

from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest
from mcp.server.mcpserver import Context, MCPServer
from serving import listening, serving

from mcp_rollout import Gateway, GatewayConfig, Session
from mcp_rollout.gateway.config.models import ServerConfig
from mcp_rollout.gateway.errors import DeliveryUnknown, ProtocolError
from mcp_rollout.gateway.leases import opening
from mcp_rollout.gateway.transport.http_exchange import Requests
from mcp_rollout.mcp_servers.kit import InProcess

pytestmark = pytest.mark.anyio
Message = MutableMapping[str, Any]


class Front:
    """An ASGI layer that notes the calls, and may redirect them or set a cookie."""

    def __init__(self, app: Callable[..., Awaitable[None]], *, redirect: bytes = b"", cookie: bytes = b"") -> None:
        self._app, self._redirect, self._cookie = app, redirect, cookie
        self.calls: list[dict[str, str]] = []
        """The headers of each; `from` is the client's port, `path` the URL's path and query."""

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        if headers.get("mcp-method") == "tools/call":
            path = f"{scope['path']}?{scope['query_string'].decode()}"
            self.calls.append({**headers, "from": str(scope["client"][1]), "path": path})
            if self._redirect and scope["path"] == "/mcp":
                await send({"type": "http.response.start", "status": 307, "headers": [(b"location", self._redirect)]})
                return await send({"type": "http.response.body", "body": b""})

        async def with_cookie(message: Message) -> None:
            if self._cookie and message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"set-cookie", self._cookie)]
            await send(message)

        await self._app({**scope, "path": "/mcp"}, receive, with_cookie)


@asynccontextmanager
async def fronted(*, json: bool = True, **wrong: bytes) -> AsyncIterator[tuple[Session, Front, list[str]]]:
    server, ran = MCPServer("world", log_level="ERROR"), list[str]()

    @server.tool()
    async def put(text: str) -> str:
        """Put."""
        ran.append(text)
        return f"{text} is stored"

    front = Front(server.streamable_http_app(json_response=json), **wrong)
    async with listening(front) as address:
        entry = {"url": f"{address}/mcp?key=k", "required": True, "headers": {"X-Team": "blue"}}
        config = GatewayConfig.model_validate({"servers": {"world": entry}})
        async with Gateway(config) as gateway, gateway.lease(trajectory="t", task=None, seed=1) as session:
            yield session, front, ran


@pytest.mark.parametrize("json", [True, False], ids=["documents", "event streams"])
async def test_calls_one_after_the_other_use_one_connection(json: bool) -> None:
    async with fronted(json=json) as (session, front, ran):
        for number in range(20):
            assert (await session.call("put", {"text": f"{number}"})).text == f"{number} is stored"
    assert len(ran) == 20 and len({call["from"] for call in front.calls}) == 1
    assert {(call["x-team"], call["path"], call["mcp-name"]) for call in front.calls} == {("blue", "/mcp?key=k", "put")}


async def test_calls_at_a_time_use_one_connection_each_and_the_next_ones_use_them_again() -> None:
    async with fronted() as (session, front, ran):
        for _ in range(3):
            async with anyio.create_task_group() as tasks:
                for number in range(8):
                    tasks.start_soon(session.call, "put", {"text": f"{number}"})
    assert len(ran) == 24 and len({call["from"] for call in front.calls}) <= 8


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
    server, wrong = MCPServer("world", log_level="ERROR"), [FOREIGN % number]

    @server.tool()
    async def put(text: str, ctx: Context) -> str:
        """Put."""
        await ctx.report_progress(1)  # which makes the answer a stream
        return f"{text} is stored"

    app = server.streamable_http_app()

    async def front(scope: Message, receive: Any, send: Any) -> None:
        async def changed(message: Message) -> None:
            if message["type"] == "http.response.body":
                message["body"] = (wrong.pop() if wrong else b"") + (b"" if alone else message["body"])
            await send(message)

        is_call = (b"mcp-method", b"tools/call") in scope.get("headers", ())
        await app(scope, receive, changed if is_call else send)

    async with listening(front) as address:
        config = GatewayConfig.model_validate({"servers": {"world": {"url": f"{address}/mcp", "required": True}}})
        async with Gateway(config) as gateway, gateway.lease(trajectory="t", task=None, seed=1) as session:
            if alone:
                with pytest.raises(ProtocolError, match="not a response to this request"):
                    await session.call("put", {"text": "x"})
            else:
                assert (await session.call("put", {"text": "x"})).text == "x is stored"


@pytest.mark.parametrize("kind", [b"text/event-stream", b"application/json"])
async def test_a_connection_on_which_the_response_to_another_request_came_carries_no_further_one(kind: bytes) -> None:
    """It may be out of step: the next call would get what belongs to this one, and follow it where it is a redirect."""
    server, ports = MCPServer("world", log_level="ERROR"), list[int]()

    @server.tool()
    async def put(text: str) -> str:
        """Put."""
        return text

    app = server.streamable_http_app(json_response=True)
    wrong = FOREIGN % b"123456789"
    body = wrong if kind == b"text/event-stream" else wrong.removeprefix(b"data: ").strip()

    async def front(scope: Message, receive: Any, send: Any) -> None:
        if (b"mcp-method", b"tools/call") not in scope.get("headers", ()):
            return await app(scope, receive, send)
        ports.append(scope["client"][1])
        if len(ports) > 1:
            return await app(scope, receive, send)
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async with listening(front) as address:
        config = GatewayConfig.model_validate({"servers": {"world": {"url": f"{address}/mcp", "required": True}}})
        async with Gateway(config) as gateway, gateway.lease(trajectory="t", task=None, seed=1) as session:
            with pytest.raises(ProtocolError, match="not a response to this request"):
                await session.call("put", {"text": "x"})
            assert [(await session.call("put", {"text": text})).text for text in "yz"] == ["y", "z"]
    assert ports[0] != ports[1] == ports[2]


async def test_a_redirect_on_the_origin_is_followed_and_the_call_runs_once() -> None:
    async with fronted(redirect=b"/elsewhere") as (session, front, ran):
        assert (await session.call("put", {"text": "x"})).text == "x is stored"
    assert [call["path"] for call in front.calls] == ["/mcp?key=k", "/elsewhere?"] and ran == ["x"]


@pytest.mark.parametrize(("kind", "most"), [("itself", 1), ("a loop of two", 2), ("ever new places", 2)])
async def test_a_call_that_is_redirected_again_and_again_is_sent_once_more_at_most(kind: str, most: int) -> None:
    """Each place may have run it: the server only says that it did not."""
    server, posts = MCPServer("world", log_level="ERROR"), list[str]()

    @server.tool()
    async def put(text: str) -> str:
        """Put."""
        return text

    app = server.streamable_http_app()

    async def front(scope: Message, receive: Any, send: Any) -> None:
        if (b"mcp-method", b"tools/call") not in scope.get("headers", ()):
            return await app(scope, receive, send)
        posts.append(scope["path"])
        there = {"itself": "/mcp", "a loop of two": "/b" if scope["path"] == "/mcp" else "/mcp"}
        place = there.get(kind, f"/{len(posts)}").encode()
        await send({"type": "http.response.start", "status": 307, "headers": [(b"location", place)]})
        await send({"type": "http.response.body", "body": b""})

    async with listening(front) as address:
        config = GatewayConfig.model_validate({"servers": {"world": {"url": f"{address}/mcp", "required": True}}})
        async with Gateway(config) as gateway, gateway.lease(trajectory="t", task=None, seed=1) as session:
            with pytest.raises(DeliveryUnknown):
                await session.call("put", {"text": "x"})
    assert len(posts) == most


async def test_a_call_over_sse_is_sent_on_once_at_most() -> None:
    server, posts = MCPServer("world", log_level="ERROR"), list[str]()

    @server.tool()
    async def put(text: str) -> str:
        """Put."""
        return text

    app, redirecting = server.sse_app(), False

    async def front(scope: Message, receive: Any, send: Any) -> None:
        if not redirecting or scope["type"] != "http" or scope["method"] != "POST":
            return await app(scope, receive, send)
        posts.append((await receive())["body"].decode())
        await send({"type": "http.response.start", "status": 307, "headers": [(b"location", b"/%d" % len(posts))]})
        await send({"type": "http.response.body", "body": b""})

    async with listening(front) as address:
        entry = {"url": f"{address}/sse", "type": "sse", "required": True}
        async with Gateway(GatewayConfig.model_validate({"servers": {"world": entry}})) as gateway:
            async with gateway.lease(trajectory="t", task=None, seed=1) as session:
                redirecting = True
                with pytest.raises(DeliveryUnknown):
                    await session.call("put", {"text": "x"})
                redirecting = False
    assert sum('"tools/call"' in body for body in posts) == 2


async def test_calls_go_straight_to_where_the_server_has_redirected_earlier_requests() -> None:
    """A chain of two redirects is followed for what may run twice; a call is then not redirected at all."""
    server, paths = MCPServer("world", log_level="ERROR"), list[tuple[bool, str]]()

    @server.tool()
    async def put(text: str) -> str:
        """Put."""
        return f"{text} is stored"

    app = server.streamable_http_app()

    async def front(scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] == "/c":
            paths.append(((b"mcp-method", b"tools/call") in scope.get("headers", ()), scope.get("path", "")))
            return await app({**scope, "path": "/mcp"}, receive, send)
        paths.append(((b"mcp-method", b"tools/call") in scope["headers"], scope["path"]))
        there = b"/b" if scope["path"] == "/mcp" else b"/c"
        await send({"type": "http.response.start", "status": 307, "headers": [(b"location", there)]})
        await send({"type": "http.response.body", "body": b""})

    async with listening(front) as address:
        config = GatewayConfig.model_validate({"servers": {"world": {"url": f"{address}/mcp", "required": True}}})
        async with Gateway(config) as gateway, gateway.lease(trajectory="t", task=None, seed=1) as session:
            for _ in range(2):
                assert (await session.call("put", {"text": "x"})).text == "x is stored"
    assert [path for is_call, path in paths if is_call] == ["/c", "/c"]


async def test_a_cookie_that_an_answer_sets_goes_with_the_next_call() -> None:
    async with fronted(cookie=b"node=7; Path=/") as (session, front, _):
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
