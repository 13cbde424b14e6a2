"""The viewer's server: static files and JSON, on the loopback interface, read-only."""

from __future__ import annotations

import secrets
import socket
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.mcp_wire.admission import LOOPBACK, named_host
from mcp_rollout.rollout.viewer.assets import PAGE, content
from mcp_rollout.rollout.viewer.directory import Directory
from mcp_rollout.rollout.viewer.explain import explain
from mcp_rollout.rollout.viewer.pages import Pages, to_json
from mcp_rollout.rollout.viewer.reading import Explaining, Reader, Refreshing

# The page shows what a model and foreign servers wrote: no text of theirs may become script, style or a request.
POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
_CACHED = 64
"""Answers that are kept until the index changes."""

Responder = Callable[[Pages, dict[str, str]], Any]
ANSWERS: dict[str, Responder] = {
    "state": lambda pages, given: pages.state(given),
    "runs": lambda pages, given: pages.series(given),
    "list": lambda pages, given: pages.list(given),
    "trajectory": lambda pages, given: pages.trajectory(given.get("id", "")),
    "tokens": lambda pages, given: pages.tokens(given.get("id", "")),
    "siblings": lambda pages, given: pages.siblings(given.get("id", "")),
}
"""What `/api/NAME` answers, by name."""


class OwnPages:
    """Lets only pages of this server ask, in a browser that was given its token.

    Any user of this machine can reach the port, and so can a page of another site, in a browser here. Under another
    host name (DNS rebinding) its requests have that name as `Host`; under this server's name they have that site's
    `Origin`. The printed address has the token as its query; it sets a cookie, which every request needs.
    """

    def __init__(self, app: ASGIApp, *, token: str) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *own]}
            await send(message)

        request = Request(scope)
        # By port: browsers send a host's cookies to all its ports.
        cookie = f"mcp-rollout-{scope['server'][1]}"
        if problem := refused(request):
            answer: ASGIApp = PlainTextResponse(problem[1] + "\n", status_code=problem[0])
        elif self._is_token(request.cookies.get(cookie, "")):
            answer = self._app
        elif self._is_token(request.query_params.get("token", "")):
            answer = RedirectResponse(request.url.path, 303)
            answer.set_cookie(cookie, self._token, httponly=True, samesite="lax")
        else:
            answer = PlainTextResponse("Open the whole address that `trace view` printed.\n", status_code=403)
        return await answer(scope, receive, with_headers)

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), self._token.encode())


def refused(request: Request) -> tuple[int, str] | None:
    """Status and reason where a request is not from one of this server's pages; None if it is."""
    if request.method not in ("GET", "HEAD"):
        return 405, "This server only answers GET."
    host = request.headers.get("host", "")
    if named_host(host) not in LOOPBACK:
        return 403, "This server answers to localhost only."
    origin = request.headers.get("origin")
    if origin is not None and origin != f"http://{host}":
        return 403, "This server does not answer other pages."
    # Browsers send no Origin with what another site embeds, but say here that it does. The page itself may be linked.
    if request.url.path.startswith("/api/") and request.headers.get("sec-fetch-site") not in (None, "same-origin"):
        return 403, "This server does not answer other pages."
    return None


def make_app(refreshing: Refreshing, reader: Reader[Pages], explaining: Explaining, token: str) -> Starlette:
    """The server's application, for those who know the token."""
    kept: OrderedDict[tuple[Any, ...], bytes] = OrderedDict()

    async def answered(request: Request) -> Response:
        name, given = request.path_params["name"], dict(request.query_params)
        refreshing.requested()
        try:
            content = await _answers(name, given)
        except ConfigError as error:
            status = 404 if name in ("trajectory", "tokens", "siblings") else 400
            return Response(to_json({"error": str(error)}), status, media_type="application/json")
        except OSError as error:  # a file that cannot be read
            return Response(to_json({"error": str(error)}), 500, media_type="application/json")
        return Response(content, media_type="application/json")

    async def _answers(name: str, given: dict[str, str]) -> bytes:
        if name == "explain":
            return to_json(await explaining.found())
        # Before the answer: should the index change meanwhile, it is kept under the older version and asked again. With
        # the generation, since SQLite counts versions by connection.
        version = (reader.generation, await reader.run(lambda pages: pages.version()))
        if name not in ANSWERS:
            raise ConfigError(f"there is no {name[:40]!r}", key="api")
        key = (version, name, *sorted(given.items()))
        if key not in kept:
            kept[key] = await reader.run(lambda pages: to_json(ANSWERS[name](pages, given)))
            while len(kept) > _CACHED:
                kept.popitem(last=False)
        if name == "state":
            more = to_json({"indexing": refreshing.is_indexing})
            return kept[key][:-1] + b"," + more[1:]
        return kept[key]

    async def page(_: Request) -> Response:
        return Response(PAGE, media_type="text/html")

    assets = content()

    async def asset(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in assets:
            return PlainTextResponse("There is no such file.\n", status_code=404)
        return Response(assets[name][0], media_type=assets[name][1])

    routes: list[tuple[str, Callable[[Request], Awaitable[Response]]]] = [
        ("/", page),
        ("/assets/{name}", asset),
        ("/api/{name}", answered),
    ]
    app = Starlette(routes=[Route(path, handle) for path, handle in routes])
    app.add_middleware(OwnPages, token=token)
    return app


def listen(port: int) -> socket.socket:
    """A socket on the loopback interface; port 0 takes a free one.

    Raises:
        ConfigError: the port is taken.
    """
    try:
        # A browser that follows the printed address waits until the server is ready.
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise ConfigError(f"cannot listen: {error}", key="--port", remedy="give another one, or 0") from error


def serve(directory: Path, listening: socket.socket, *, token: str, tokenizer: Path | None = None) -> None:
    """Serve the directory's page until the process is interrupted, at the address with `/?token=TOKEN`.

    Raises:
        ConfigError: there is no such directory.
    """
    with Refreshing(directory) as refreshing:
        reader = Reader(refreshing, lambda traces: Pages(traces, tokenizer))
        explaining = Explaining(
            refreshing, lambda traces: Directory(traces, tokenizer), lambda directory: explain(directory).record()
        )
        try:
            app = make_app(refreshing, reader, explaining, token)
            # On Ctrl-C a question that is being answered, which may take QUERY_TIMEOUT_S, is waited for a second only.
            config = uvicorn.Config(app, log_level="warning", ws="none", lifespan="off", timeout_graceful_shutdown=1)
            uvicorn.Server(config).run(sockets=[listening])
        finally:
            reader.close()
            explaining.close()
