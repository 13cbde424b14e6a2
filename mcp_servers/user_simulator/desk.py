"""Where a person answers: open questions, and the small web page and JSON interface to them."""

from __future__ import annotations

import itertools
import socket
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Literal

import anyio
import uvicorn
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from mcp_servers.kit import ToolError

_MOST_BYTES = 1 << 20


class Line(BaseModel):
    """One thing that was said."""

    by: Literal["user", "assistant"]
    text: str


class Answered(BaseModel):
    """What the person wrote."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    message: str
    done: bool = False
    """Whether they leave with it."""


@dataclass(eq=False, slots=True)
class _Question:
    about: dict[str, str]
    said: Sequence[Line]
    answer: Answered | None = None
    answered: anyio.Event = field(default_factory=anyio.Event)


class Desk:
    """Questions that wait for a person. Each waits `wait_s` seconds at most."""

    def __init__(self, *, wait_s: float) -> None:
        self._wait_s = wait_s
        self._questions: dict[str, _Question] = {}
        self._numbers = itertools.count(1)

    async def ask(self, about: dict[str, str], said: Sequence[Line]) -> Answered:
        """What the person answers.

        Args:
            about: What they are told besides the conversation, by title.

        Raises:
            ToolError: nobody answered in time.
        """
        number, question = str(next(self._numbers)), _Question(about, list(said))
        self._questions[number] = question
        try:
            with anyio.fail_after(self._wait_s):
                await question.answered.wait()
        except TimeoutError as error:
            raise ToolError(f"nobody answered for the user within {self._wait_s:g} s") from error
        finally:
            del self._questions[number]
        assert question.answer is not None
        return question.answer

    def app(self, hosts: Sequence[str]) -> Starlette:
        """The web page, and the interface behind it, for requests that name one of these hosts.

        A page of somebody else cannot answer: its requests carry another host, or a content type that browsers ask
        about first.
        """
        routes = [
            Route("/", self._page),
            Route("/questions", self._list),
            Route("/questions/{number}", self._answer, methods=["POST"]),
        ]
        return Starlette(routes=routes, middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))])

    async def _page(self, _: Request) -> Response:
        return HTMLResponse((files("mcp_servers.user_simulator") / "desk.html").read_text(encoding="utf-8"))

    async def _list(self, _: Request) -> Response:
        return JSONResponse(
            [
                {"id": number, "about": question.about, "said": [line.model_dump() for line in question.said]}
                for number, question in self._questions.items()
                if question.answer is None
            ]
        )

    async def _answer(self, request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return JSONResponse({"error": "content-type is not application/json"}, status_code=415)
        question = self._questions.get(request.path_params["number"])
        if question is None or question.answer is not None:
            return JSONResponse({"error": "nobody waits for this answer"}, status_code=404)
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > _MOST_BYTES:
                return JSONResponse({"error": f"more than {_MOST_BYTES} bytes"}, status_code=413)
        try:
            question.answer = Answered.model_validate_json(bytes(body))
        except ValidationError as error:
            return JSONResponse({"error": error.errors(include_url=False)[0]["msg"]}, status_code=422)
        question.answered.set()
        return JSONResponse({})


class _Quiet(uvicorn.Server):
    """Leaves signals to the program, which has a server of its own."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


@asynccontextmanager
async def opened(desk: Desk, listening: socket.socket) -> AsyncGenerator[str]:
    """The desk at a bound socket, as long as the block lasts; its address."""
    host, port = listening.getsockname()[:2]
    # No access log: standard output may be the protocol's.
    config = uvicorn.Config(desk.app([host, "localhost"]), log_config=None, ws="none", timeout_graceful_shutdown=1)
    server = _Quiet(config)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve, [listening])
        try:
            yield f"http://{host}:{port}"
        finally:
            server.should_exit = True
