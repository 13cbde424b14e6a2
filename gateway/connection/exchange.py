"""One call in flight: whom its server may ask meanwhile, and what it says by the way."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NoReturn

import anyio
import structlog

from gateway.errors import GatewayError, RequestRefused
from gateway.shortened import cut_text, shortened
from gateway.types import Notification, NotificationKind, RequestKind, ServerEvents, ServerRequest

log = structlog.get_logger(__name__)

_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
RANK = {level: rank for rank, level in enumerate(_LEVELS)}
"""How grave a log message is, by the word for it."""
_MAX_TEXT = 500


@dataclass(frozen=True, slots=True)
class Question:
    """What a server asks for within a call of `tool`; `params` as the protocol words them."""

    server: str
    tool: str
    params: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answerer:
    """Who answers one kind of request. `answer` returns a result in the protocol's words and raises `GatewayError`."""

    answer: Callable[[Question], Awaitable[dict[str, Any]]]
    timeout_s: float


class Refused(Exception):
    """The server's request gets an error for an answer; the message is for the server."""


class Exchange:
    """Made for one call by the session, used by the connection that carries it."""

    def __init__(
        self,
        *,
        server: str,
        tool: str,
        trajectory: str = "",
        answerers: Mapping[RequestKind, Answerer] | None = None,
        most_requests: int = 10,
        heard: ServerEvents | None = None,
        log_level: str = "info",
    ) -> None:
        self.server, self.tool, self.trajectory = server, tool, trajectory
        self.broken: GatewayError | None = None
        """Why somebody who should have answered did not; the call says nothing about the policy then."""
        self.scope: anyio.CancelScope | None = None
        """Bounds the call; its deadline rests while somebody here is the one who is waited for."""
        self.clean: Callable[[Any], Any] = _as_it_is
        """Takes the server's secrets out of what is noted."""
        self._answerers = answerers or {}
        self._most_requests = most_requests
        self._heard = heard if heard is not None else ServerEvents()
        self._least = RANK[log_level]
        self._requests = 0
        self._answering = 0
        self._left_s = 0.0

    async def ask(self, kind: RequestKind, params: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a server's request, in the protocol's words.

        Raises:
            Refused: nobody is configured to answer, somebody failed to, or the call has asked too often.
        """
        params = self.clean(dict(params))
        event = ServerRequest(server=self.server, tool=self.tool, kind=kind, asked=shortened(params))
        self._heard.add_request(event)
        began = time.perf_counter()
        try:
            with self._clock_stopped():
                answer = await self._answer(kind, params)
        except Refused as refusal:
            event.refused = cut_text(str(refusal), _MAX_TEXT)
            log.warning(
                "exchange.refused",
                trajectory=self.trajectory,
                server=self.server,
                tool=self.tool,
                asked=str(kind),
                problem=str(refusal),
            )
            raise
        finally:
            event.elapsed_s = time.perf_counter() - began
        event.answer = shortened(answer)
        return answer

    async def _answer(self, kind: RequestKind, params: Mapping[str, Any]) -> dict[str, Any]:
        self._requests += 1
        if self._requests > self._most_requests:
            raise Refused(f"a call may ask {self._most_requests} times (max_requests_per_call)")
        answerer = self._answerers.get(kind)
        if answerer is None:
            raise Refused(not_configured(kind))
        try:
            with anyio.move_on_after(answerer.timeout_s):
                return await answerer.answer(Question(self.server, self.tool, params))
            problem = f"no answer within {answerer.timeout_s:g} s ({kind}.timeout_s)"
        except GatewayError as error:
            problem = str(error)
        # Not that other error: it would be taken for one of the call's own connection.
        self.broken = RequestRefused(f"{kind}: {problem}", server=self.server, tool=self.tool)
        raise Refused(problem)

    def refuse(self, kind: RequestKind, params: Mapping[str, Any], reason: str) -> NoReturn:
        """Note a request that nobody is asked about. Raises `Refused`."""
        event = ServerRequest(
            server=self.server, tool=self.tool, kind=kind, asked=shortened(self.clean(dict(params))), refused=reason
        )
        self._heard.add_request(event)
        raise Refused(reason)

    @contextmanager
    def _clock_stopped(self) -> Generator[None]:
        # The server waits for us here: that is bounded by the answerer's own timeout.
        scope = self.scope
        if scope is not None and self._answering == 0:
            self._left_s, scope.deadline = scope.deadline - anyio.current_time(), math.inf
        self._answering += 1
        try:
            yield
        finally:
            self._answering -= 1
            if scope is not None and self._answering == 0:
                scope.deadline = anyio.current_time() + self._left_s

    def progress(self, progress: object, total: object, message: object) -> None:
        """Note a progress notification; any number of them costs a bounded amount of memory."""
        if self._has_room():
            self._note(NotificationKind.PROGRESS, message or "", progress=_number(progress), total=_number(total))

    def logged(self, level: object, data: object) -> None:
        """Note a log message, unless it is below the server's `log_level`."""
        name = level if isinstance(level, str) and level in RANK else "info"
        if RANK[name] >= self._least and self._has_room():
            self._note(NotificationKind.LOG, data, level=name)

    def _has_room(self) -> bool:
        room = len(self._heard.notifications) < ServerEvents.MAX_NOTIFICATIONS
        self._heard.more_notifications += not room
        return room

    def _note(self, kind: NotificationKind, text: object, **more: Any) -> None:
        # Cleaned before it is worded and cut: quotes around a secret change it, and half of one is not found.
        said = self.clean(text)
        shown = (said if isinstance(said, str) else repr(said))[:_MAX_TEXT]
        note = Notification(server=self.server, tool=self.tool, kind=kind, text=shown, **more)
        self._heard.notifications.append(note)


EXCHANGE: ContextVar[Exchange | None] = ContextVar("exchange", default=None)
"""The call being made in this context; some transports carry the context along to what the server sends meanwhile."""


def not_configured(kind: RequestKind) -> str:
    """Why a request of this kind is refused where nobody answers it, with the remedy."""
    match kind:
        case RequestKind.ELICITATION:
            remedy = "name the server whose `elicit` tool answers for the user: elicitation: {server: NAME}"
        case RequestKind.SAMPLING:
            remedy = "name a model: sampling: {url: ..., model: ...}"
    return f"{kind} is not configured here ({remedy})"


def _as_it_is(value: Any) -> Any:
    return value


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:  # hundreds of digits
        return None
