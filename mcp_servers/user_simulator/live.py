"""The live user, whom a person plays on a small web page or at a terminal."""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import time
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, TextIO

import anyio
import httpx2
import uvicorn
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_rollout.mcp_servers.kit import Elicited, Numbered, Reply, ToolError
from mcp_rollout.mcp_servers.user_simulator.modelled import Persona
from mcp_rollout.mcp_servers.user_simulator.scripted import answer_of
from mcp_rollout.mcp_wire.door import named_host
from mcp_rollout.mcp_wire.http_server import Server

LEAVE = "/leave"
_POLL_S = 0.5
_MAX_BYTES = 1 << 20


class Line(BaseModel):
    """A message of the conversation."""

    by: Literal["user", "assistant"]
    text: str


class PersonsAnswer(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    message: str
    done: bool = False
    """Whether the user leaves with this message."""


@dataclass(eq=False, slots=True)
class _Question:
    about: dict[str, str]
    said: Sequence[Line]
    answer: PersonsAnswer | None = None
    answered: anyio.Event = field(default_factory=anyio.Event)


class AnswerPage:
    """Open questions to a person, and the web page and JSON interface for answering them.

    Args:
        wait_s: Seconds without an answer to any question, after which those that have waited so long fail. While the
            person answers others, a question waits.
    """

    def __init__(self, *, wait_s: float) -> None:
        self._wait_s, self._token = wait_s, secrets.token_urlsafe()
        self._questions: dict[str, _Question] = {}
        self._numbers = itertools.count(1)
        self._answered = 0

    async def ask(self, about: dict[str, str], said: Sequence[Line]) -> PersonsAnswer:
        """Waits for the person's answer.

        Args:
            about: What the page shows besides the conversation, by title.
            said: The conversation so far.

        Raises:
            ToolError: There was no answer in time.
        """
        number, question = str(next(self._numbers)), _Question(about, list(said))
        self._questions[number] = question
        try:
            while question.answer is None:
                answered = self._answered
                with anyio.move_on_after(self._wait_s) as wait:
                    await question.answered.wait()
                if wait.cancelled_caught and self._answered == answered:
                    raise ToolError(f"no person answered for the user within {self._wait_s:g} s")
        finally:
            # Also when the trajectory is released: the page shows no question that nothing waits for.
            del self._questions[number]
        assert question.answer is not None
        return question.answer

    @asynccontextmanager
    async def served(self, listening: socket.socket) -> AsyncGenerator[str]:
        """Serves the page on a bound socket until the block ends; yields its URL, which has the token."""
        host, port = listening.getsockname()[:2]
        # No access log: standard output may carry the protocol.
        config = uvicorn.Config(self.app([host, "localhost"]), log_config=None, ws="none", timeout_graceful_shutdown=1)
        server = Server(config)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listening])
            try:
                yield f"http://{host}:{port}/?token={self._token}"
            finally:
                # The task group then waits for `serve`, which gives open requests a second.
                server.should_exit = True

    def app(self, hosts: Sequence[str]) -> Starlette:
        """The web application, for requests that name one of these hosts and have the token.

        Another site's page cannot answer: its requests have another host, or a content type for which browsers send
        a preflight request first.
        """
        routes = [
            Route("/", self._page),
            Route("/questions", self._list),
            Route("/questions/{number}", self._answer, methods=["POST"]),
        ]
        return Starlette(routes=routes, middleware=[Middleware(_WithToken, token=self._token, hosts=hosts)])

    async def _page(self, _: Request) -> Response:
        return HTMLResponse((files("mcp_rollout.mcp_servers.user_simulator") / "live.html").read_text(encoding="utf-8"))

    async def _list(self, _: Request) -> Response:
        return JSONResponse(
            [
                {"id": number, "about": question.about, "said": [line.model_dump() for line in question.said]}
                for number, question in self._questions.items()
                # One that is answered stays in the table until the task that asked has run.
                if question.answer is None
            ]
        )

    def _is_open(self, number: str) -> bool:
        question = self._questions.get(number)
        return question is not None and question.answer is None

    async def _answer(self, request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return JSONResponse({"error": "content-type is not application/json"}, status_code=415)
        number = request.path_params["number"]
        if not self._is_open(number):
            return JSONResponse({"error": "this question is no longer open"}, status_code=404)
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > _MAX_BYTES:
                return JSONResponse({"error": f"more than {_MAX_BYTES} bytes"}, status_code=413)
        try:
            answer = PersonsAnswer.model_validate_json(bytes(body))
        except ValidationError as error:
            return JSONResponse({"error": error.errors(include_url=False)[0]["msg"]}, status_code=422)
        # Again: while the body arrived, another request may have answered, or the time for it may have ended.
        if not self._is_open(number):
            return JSONResponse({"error": "this question is no longer open"}, status_code=404)
        question = self._questions[number]
        question.answer = answer
        self._answered += 1
        question.answered.set()
        return JSONResponse({})


class _WithToken:
    """Answers those who have the token: of the address, which sets a cookie. Every user of this machine can ask."""

    def __init__(self, app: ASGIApp, *, token: str, hosts: Sequence[str]) -> None:
        self._app, self._token, self._hosts = app, token, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request, answer = Request(scope), self._app
        cookie = f"mcp-rollout-{scope['server'][1]}"  # browsers send a host's cookies to all its ports
        token = request.query_params.get("token", "")
        if named_host(request.headers.get("host", "")) not in self._hosts:
            answer = PlainTextResponse("Invalid host header", status_code=400)
        elif not secrets.compare_digest((token or request.cookies.get(cookie, "")).encode(), self._token.encode()):
            answer = PlainTextResponse("Open the whole address, with its token.\n", status_code=403)
        elif token:
            answer = RedirectResponse("/", 303)
            answer.set_cookie(cookie, token, httponly=True, samesite="lax")
        return await answer(scope, receive, send)


def address_file(port: int) -> Path:
    """Where the page on a port leaves its address, with the token, for the user who started it."""
    return Path.home() / ".cache" / "mcp-rollout" / f"live-{port}.url"


@contextmanager
def kept(url: str, port: int) -> Generator[Path]:
    """Keep a URL in its `address_file`, which no other user can read, as long as the block lasts."""
    file = address_file(port)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as kept:
        kept.write(url)
    try:
        yield file
    finally:
        file.unlink(missing_ok=True)


class LiveUser:
    """A `SimulatedUser` that a person plays. The page shows the person the persona and the conversation."""

    def __init__(self, persona: Persona, page: AnswerPage, *, task: str) -> None:
        self._persona, self._page, self._task = persona, page, task
        self._said: list[Line] = []
        self._openings = Numbered[str]("opening")
        self._replies = 0

    async def opening(self) -> str:
        return await self._openings.answer(1, self._open)

    async def reply(self, message: str) -> Reply:
        # Also where `start` was never called: the conversation begins with the user's message.
        await self.opening()
        heard = Line(by="assistant", text=message)
        answer = await self._page.ask(self._about("answer the assistant"), [*self._said, heard])
        # Only now: a turn without an answer has failed, and can be asked for again.
        self._said += [heard, Line(by="user", text=answer.message)]
        self._replies += 1
        return Reply(message=answer.message, done=answer.done or self._replies >= self._persona.max_replies)

    def elicit(self, question: str) -> Elicited:
        return answer_of(self._persona.answers, question)

    async def _open(self) -> str:
        opening = self._persona.opening
        if opening is None:
            opening = (await self._page.ask(self._about("begin the conversation"), [])).message
        self._said.append(Line(by="user", text=opening))
        return opening

    def _about(self, what: str) -> dict[str, str]:
        return {
            "Task": f"{self._task}: {what}",
            "Who you are": self._persona.persona,
            "What you want": self._persona.goal,
            "When you leave": self._persona.stop,
        }


def answer_questions(url: str, *, wait_s: float, given: TextIO, shown: TextIO) -> int:
    """Answers the questions of an `AnswerPage` at a terminal: shows the oldest one, reads a line, sends it.

    Ends with `given`, or after `wait_s` seconds without a question. With a line that ends in `/leave` the user leaves.

    Returns:
        An exit status: 0, or 1 if there is no page at the URL.
    """
    place = url.partition("/?")[0]
    with httpx2.Client(base_url=place, timeout=10) as page:
        asked = time.monotonic()
        try:
            page.get(url)  # for the cookie
            while time.monotonic() - asked < wait_s:
                questions: list[dict[str, Any]] = page.get("/questions").raise_for_status().json()
                if not questions:
                    time.sleep(_POLL_S)
                    continue
                _show(questions[0], shown)
                line = given.readline()
                if not line:
                    return 0
                text = line.strip()
                body = {"message": text.removesuffix(LEAVE).strip(), "done": text.endswith(LEAVE)}
                sent = page.post(f"/questions/{questions[0]['id']}", json=body)
                if sent.status_code != 200:
                    shown.write(f"not sent: {sent.json().get('error')}\n")
                asked = time.monotonic()
        except httpx2.HTTPError as error:
            shown.write(f"no page for answers at {place}: {error}\n")
            return 1
    return 0


def _show(question: dict[str, Any], shown: TextIO) -> None:
    for title, text in question["about"].items():
        shown.write(f"{title}: {_visible(text)}\n")
    for line in question["said"]:
        shown.write(f"{'you' if line['by'] == 'user' else 'assistant'}> {_visible(line['text'])}\n")
    shown.write(f"you ({LEAVE} at the end to leave)> ")
    shown.flush()


def _visible(text: str) -> str:
    """A text that acts on no terminal: what a policy wrote may have escape sequences and other hidden characters."""
    return "".join(each if each.isprintable() or each == "\n" else f"<U+{ord(each):04X}>" for each in text)
