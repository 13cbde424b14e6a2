"""The HTTP endpoint of a worker: for each trajectory a model and a world, at addresses with a key of its own."""

from __future__ import annotations

import asyncio
import re
import secrets
import socket
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

import anyio
import structlog
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from pydantic_core import to_json
from starlette.requests import ClientDisconnect
from starlette.requests import Request as AsgiRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from mcp_rollout.gateway.transport.messages import read_request
from mcp_rollout.mcp_wire.http_connections import Connections
from mcp_rollout.mcp_wire.http_request import BEARER, DirectAnswer, NotAdmitted, Request
from mcp_rollout.mcp_wire.http_server import http_server
from mcp_rollout.rollout.programs.conversation import MODEL, SMALL, Answer, Refusal, Unreadable, Waiting
from mcp_rollout.rollout.programs.dialects.chat import Chat
from mcp_rollout.rollout.programs.dialects.dialect import Dialect, Event, Json
from mcp_rollout.rollout.programs.dialects.messages import Messages
from mcp_rollout.rollout.programs.dialects.responses import Responses
from mcp_rollout.rollout.programs.process import Homes
from mcp_rollout.rollout.programs.program_session import MOST_WAITING, ProgramSession
from mcp_rollout.rollout.programs.world import world_of
from mcp_rollout.rollout.types import Message

log = structlog.get_logger(__name__)

_CHAT = Chat()
DIALECTS: Mapping[str, Dialect] = MappingProxyType(
    {"chat/completions": _CHAT, "responses": Responses(), "messages": Messages()}
)
"""By the end of the path."""
_MOST_BYTES, _MOST_CALL_BYTES = 8 << 20, 1 << 20
"""Longest request, a conversation of a million tokens as JSON, without images; and longest call of the world's."""
HOME = b"/home/rollout-program"
_BACKLOG, _RECEIVE_S, _UNADMITTED, _STOP_S = 1024, 30.0, 1024, 1.0
_ENDPOINTS: WeakKeyDictionary[asyncio.AbstractEventLoop, ProgramEndpoint] = WeakKeyDictionary()
"""The one of each running event loop, while trajectories of programs are played there."""


@dataclass(eq=False, slots=True)
class Route:
    """A trajectory at the endpoint."""

    session: ProgramSession
    world: StreamableHTTPSessionManager
    homes: Homes
    events_s: float
    key: str
    url: str
    home: str = ""
    """The program's directory; `HOME` in its place in what the policy reads, so that siblings have the same prompts."""
    frozen: Sequence[tuple[re.Pattern[bytes], bytes]] = ()
    """What else of a request's JSON is replaced, and by what."""
    under_way: int = 0
    """Requests for an answer, from their head on."""

    def for_policy(self, raw: bytes) -> bytes:
        """A request's JSON as the policy reads it."""
        for pattern, text in self.frozen:
            raw = pattern.sub(lambda _, text=text: text, raw)
        return raw.replace(self.home.encode(), HOME) if self.home else raw

    def for_program(self, document: Any) -> bytes:
        """An answer as JSON for the program, whose directory has its own name again."""
        raw = to_json(document, inf_nan_mode="constants")
        return raw.replace(HOME, self.home.encode()) if self.home else raw


class ProgramEndpoint:
    """The endpoint: an ASGI application, and the `Site` of its connections."""

    def __init__(self) -> None:
        self._routes: dict[str, Route] = {}
        self._homes = Homes()
        listener = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        self._url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        connections = Connections(receive_s=_RECEIVE_S, unadmitted=_UNADMITTED)
        self._server = http_server(self, self, connections, stop_s=_STOP_S)
        # Clients wait in the listener's backlog until it is served.
        self._tasks = [asyncio.ensure_future(self._server.serve(sockets=[listener]))]
        self._tasks.append(asyncio.ensure_future(connections.sweep()))

    @classmethod
    @asynccontextmanager
    async def route(cls, session: ProgramSession, *, events_s: float) -> AsyncGenerator[Route]:
        """A place for a trajectory on the worker's endpoint, for the length of the block.

        Args:
            events_s: Pause between the events that keep a program waiting for an answer.
        """
        loop, key = asyncio.get_running_loop(), secrets.token_urlsafe(24)
        # Taken, and given up below, without an `await` in between: an endpoint without a trajectory is closing.
        if loop not in _ENDPOINTS:
            _ENDPOINTS[loop] = cls()
        endpoint, world = _ENDPOINTS[loop], world_of(session, most_bytes=_MOST_CALL_BYTES)
        route = endpoint._routes[key] = Route(
            session, world, endpoint._homes, events_s, key, f"{endpoint._url}/p/{key}"
        )
        try:
            async with world.run():
                yield route
        finally:
            del endpoint._routes[key]
            if not endpoint._routes:
                del _ENDPOINTS[loop]
                await endpoint._close()

    async def _close(self) -> None:
        self._server.should_exit = True
        with anyio.CancelScope(shield=True):
            await asyncio.wait(self._tasks[:1], timeout=2 * _STOP_S)
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
            await self._homes.close()

    # As `Site`.

    def admit(self, request: Request) -> tuple[Route, str]:
        """The trajectory of a request, and the rest of its path."""
        _, _, rest = request.target.partition(b"?")[0].decode("latin-1").partition("/p/")
        key, _, path = rest.partition("/")
        route = self._routes.get(key)
        if route is None:
            # 400, which programs do not repeat: also for the key of a trajectory that has ended.
            raise NotAdmitted(DirectAnswer(400, to_json(_CHAT.error(Refusal("there is no such trajectory")))))
        return route, path

    def may_answer(self, request: Request) -> bool:
        return False

    async def answer(self, request: Request) -> bool:
        return False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        route, path = scope["state"][BEARER]
        if path.rstrip("/") == "mcp":
            await route.world.handle_request(scope, receive, send)
            return
        name = path.removeprefix("v1/").removeprefix("v1/").rstrip("/")
        dialect = DIALECTS.get(name)
        if dialect is not None and scope["method"] == "POST":
            route.under_way += 1
            try:
                response = await _Exchange(route, dialect).response(AsgiRequest(scope, receive))
                await response(scope, receive, send)
            except ClientDisconnect:
                pass
            finally:
                route.under_way -= 1
            return
        elif name == "models":
            models = [{"id": each, "object": "model", "created": 0, "owned_by": "policy"} for each in (MODEL, SMALL)]
            response = JSONResponse({"object": "list", "data": models, "has_more": False})
        else:
            problem = f"nothing is served at {path[:100]!r}: there are {', '.join(DIALECTS)}"
            response = JSONResponse(_CHAT.error(Refusal(problem)), 400)
        await response(scope, receive, send)


@dataclass(frozen=True, slots=True)
class _Exchange:
    """One request for an answer of the model."""

    route: Route
    dialect: Dialect

    async def response(self, request: AsgiRequest) -> Response:
        """What answers a request. Raises ClientDisconnect where the program leaves before all of it has arrived."""
        session, dialect = self.route.session, self.dialect
        try:
            body = await self._body(request)
            asked = dialect.read(body)
        except (Unreadable, KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            problem = str(error) if isinstance(error, Unreadable) else f"the request is malformed: {error!r}"
            session.refused = problem
            return self._document(400, dialect.error(Refusal(problem)))
        labels = {**asked.labels, **dict(request.headers)}
        waiting, had = session.ask(replace(asked, labels=labels))
        with anyio.move_on_after(self.route.events_s if asked.stream else None):
            await self._done(waiting, request)
        if isinstance(waiting.outcome, Refusal):
            session.refused = session.refused if session.over else waiting.outcome.problem
            return self._document(400, dialect.error(waiting.outcome))
        if isinstance(waiting.outcome, Answer) and not asked.stream:
            return self._document(200, dialect.document(waiting.outcome.without(had), body))
        events = self._events(waiting, had, body)
        return StreamingResponse(events, media_type="text/event-stream", headers={"cache-control": "no-cache"})

    async def _done(self, waiting: Waiting, request: AsgiRequest) -> None:
        """Wait for the outcome. Raises ClientDisconnect where the program leaves: what it sends again counts anew."""

        async def leave() -> None:
            await request.receive()  # of a request that has arrived, its end is all that is left
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(leave)
            await waiting.done.wait()
            tasks.cancel_scope.cancel()
            return
        raise ClientDisconnect

    async def _body(self, request: AsgiRequest) -> Json:
        if self.route.under_way > MOST_WAITING + 1:
            raise Unreadable(f"{MOST_WAITING} requests of this trajectory wait already")
        if (encoding := request.headers.get("content-encoding", "identity")) != "identity":
            raise Unreadable(f"the request is compressed ({encoding:.40}): have the program send it as it is")
        raw = bytearray()
        async for part in request.stream():
            raw += part
            if len(raw) > _MOST_BYTES:
                raise Unreadable(f"the request has more than {_MOST_BYTES} bytes")
        try:
            body, replaced = read_request(self.route.for_policy(bytes(raw)))
        except ValueError as error:
            raise Unreadable(f"the request is malformed: {error}") from error
        if replaced:
            raise Unreadable(f"the request is malformed: {replaced}")
        return body

    async def _events(self, waiting: Waiting, had: Message | None, body: Json) -> AsyncGenerator[bytes]:
        while waiting.outcome is None:
            yield self._event(self.dialect.waiting(body))
            with anyio.move_on_after(self.route.events_s):
                await waiting.done.wait()
        if isinstance(waiting.outcome, Refusal):
            yield self._event(self.dialect.failed(waiting.outcome, body))
            return
        for event in self.dialect.events(waiting.outcome.without(had), body):
            yield self._event(event)
        yield self.dialect.done

    def _event(self, event: Event) -> bytes:
        name, data = event
        head = f"event: {name}\n".encode() if name else b""
        return b"%sdata: %s\n\n" % (head, self.route.for_program(data))

    def _document(self, status: int, document: Json) -> Response:
        return Response(self.route.for_program(document), status, media_type="application/json")
