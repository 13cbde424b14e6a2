"""Real servers over loopback: MCP servers in either era, and a model's chat endpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import uvicorn
from mcp.server.mcpserver import MCPServer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

App = Callable[..., Awaitable[None]]


@asynccontextmanager
async def listening(app: App) -> AsyncIterator[str]:
    """The address of a web server that serves `app` as long as the block lasts."""
    config = uvicorn.Config(app, port=0, log_level="critical", ws="none", timeout_graceful_shutdown=1)
    running = uvicorn.Server(config)
    stopped = anyio.Event()

    async def serve() -> None:
        await running.serve()
        stopped.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        while not running.started:
            await anyio.lowlevel.checkpoint()
        try:
            yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}"
        finally:
            running.should_exit = True
            with anyio.move_on_after(5, shield=True):
                await stopped.wait()


def handshake_only(app: App) -> App:
    """The same server, without the protocol of 2026."""

    async def older(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        async def received() -> Any:
            # Over SSE: an unknown method, as to a server that was written before it.
            message = await receive()
            body = message.get("body", b"")
            if b'"server/discover"' in body:
                body = body.replace(b"server/discover", b"server/discoveR").replace(b"io.model", b"io.modeL")
            return {**message, "body": body} if message["type"] == "http.request" else message

        if scope["type"] == "http" and (b"mcp-method", b"server/discover") in scope["headers"]:
            await Response(status_code=404)(scope, receive, send)
        else:
            await app(scope, received, send)

    return older


@asynccontextmanager
async def serving(server: MCPServer, transport: str) -> AsyncIterator[dict[str, Any]]:
    """A server's entry; `transport` is `http`, `sse`, or one of them with `-handshake`."""
    app: App = server.sse_app() if transport.startswith("sse") else server.streamable_http_app()
    if transport.endswith("-handshake"):
        app = handshake_only(app)
    async with listening(app) as address:
        if transport.startswith("sse"):
            yield {"url": f"{address}/sse", "type": "sse", "required": True}
        else:
            yield {"url": f"{address}/mcp", "required": True}


class Model:
    """A chat endpoint that answers every request with its last message in capitals."""

    def __init__(self, *, delay_s: float = 0, pause: Callable[[], Awaitable[None]] | None = None) -> None:
        self.delay_s, self.pause = delay_s, pause
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200

    @property
    def app(self) -> Starlette:
        return Starlette(routes=[Route("/v1/chat/completions", self._complete, methods=["POST"])])

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        await (self.pause() if self.pause else anyio.sleep(self.delay_s))
        if self.status != 200:
            return JSONResponse({"error": "no"}, status_code=self.status)
        text = body["messages"][-1]["content"].upper()
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        return JSONResponse({"id": "1", "object": "chat.completion", "model": "echo-1", "choices": [choice]})
