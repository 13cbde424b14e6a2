"""The tool calls in flight: the delivery of each, the requests its server makes meanwhile, its notifications."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

import anyio
import structlog

from mcp_rollout.gateway.connection.deadline import Deadline
from mcp_rollout.gateway.connection.relay import Relay
from mcp_rollout.gateway.errors import GatewayError, RequestRefused
from mcp_rollout.gateway.server_events import (
    Notification,
    NotificationKind,
    RequestKind,
    ServerEvents,
    ServerRequest,
    cut_text,
    shortened,
)
from mcp_rollout.gateway.transport.delivery import Delivery
from mcp_rollout.gateway.types import TRAJECTORY_META, ToolDefinition

log = structlog.get_logger(__name__)

_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
RANK = {level: rank for rank, level in enumerate(_LEVELS)}
"""Severity by level name."""
_MAX_TEXT = 500


@dataclass(frozen=True, slots=True)
class Question:
    """A request that a server makes within a call of `tool`; `params` in the protocol's form."""

    server: str
    tool: str
    params: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answerer:
    """Answers one kind of request. `answer` returns a result in the protocol's form, or raises `GatewayError`."""

    answer: Callable[[Question], Awaitable[dict[str, Any]]]
    timeout_s: float
    queue: anyio.CapacityLimiter
    """How many requests are answered at a time."""


class Refused(Exception):
    """A server's request is answered with an error; the message is for the server."""


@dataclass(slots=True)
class RawAnswer:
    """A server's answer to a call in the protocol's form, without secrets; empty where there was none."""

    result: dict[str, Any] = field(default_factory=dict[str, Any])
    error: dict[str, Any] = field(default_factory=dict[str, Any])
    """Of JSON-RPC: code, message and perhaps data."""


class InFlightCall(Delivery):
    """Made by the session for one attempt at a call, used by the connection that carries it.

    Args:
        answerers: By the kind of request; a kind without one is refused.
        most_requests: How many requests the server may make within the call.
        events: Where requests and notifications are recorded.
        log_level: The least severe log message that is recorded.
        nested: Whether a call that is itself in flight waits for this one.
        raw: Gets the server's own answer.
        relay: Gets what the server sends meanwhile, in place of answerers and the record.
    """

    is_call = True

    def __init__(
        self,
        *,
        server: str,
        tool: str,
        trajectory: str = "",
        answerers: Mapping[RequestKind, Answerer] | None = None,
        most_requests: int = 10,
        events: ServerEvents | None = None,
        log_level: str = "info",
        nested: bool = False,
        raw: RawAnswer | None = None,
        relay: Relay | None = None,
    ) -> None:
        super().__init__(nested=nested)
        self.raw, self.relay = raw, relay
        self.server, self.tool, self.trajectory = server, tool, trajectory
        self.broken: GatewayError | None = None
        """Why an answerer failed; the policy did not cause the outcome of the call."""
        self.deadline: Deadline | None = None
        """Of the call; suspended while the server waits for an answer of ours."""
        self.redact: Callable[[Any], Any] = lambda value: value
        """Replaces the server's secrets in what is recorded."""
        self._answerers = answerers or {}
        self._most_requests = most_requests
        self.events = events if events is not None else ServerEvents()
        self._least = RANK[log_level]
        self._requests = self._refused = 0
        self._answering = 0
        self._left_s = 0.0

    async def answer(self, kind: RequestKind, params: Mapping[str, Any], *, tool: str | None = None) -> dict[str, Any]:
        """The answer to a request of the server, in the protocol's form.

        Raises:
            Refused: no answerer is configured, it failed, or the server has made too many requests within this call.
        """
        params = self.redact(dict(params))
        tool = tool or self.tool
        event = ServerRequest(server=self.server, tool=tool, kind=kind, asked=shortened(params))
        self.events.add_request(event)
        began = time.perf_counter()
        try:
            with self.clock_stopped():
                answer = await self._answer(kind, params, tool)
        except Refused as refusal:
            event.refused = cut_text(str(refusal), _MAX_TEXT)
            self._refused += 1
            # The first, the tenth, the hundredth: a server may ask as often as it likes.
            if str(self._refused).strip("0") == "1":
                log.warning(
                    "exchange.refused",
                    trajectory=self.trajectory,
                    server=self.server,
                    tool=tool,
                    asked=str(kind),
                    problem=event.refused,
                    refused=self._refused,
                )
            raise
        finally:
            event.elapsed_s = time.perf_counter() - began
        event.answer = shortened(answer)
        return answer

    async def _answer(self, kind: RequestKind, params: Mapping[str, Any], tool: str) -> dict[str, Any]:
        # Refused ones count: a server that asks in a loop must be stopped.
        self._requests += 1
        if self._requests > self._most_requests:
            raise Refused(f"a call may make {self._most_requests} requests (max_requests_per_call)")
        answerer = self._answerers.get(kind)
        if answerer is None:
            raise Refused(not_configured(kind))
        try:
            # Waiting for earlier requests does not count against this one's time.
            async with answerer.queue:
                with anyio.move_on_after(answerer.timeout_s):
                    return await answerer.answer(Question(self.server, tool, params))
            problem, said = f"no answer within {answerer.timeout_s:g} s ({kind}.timeout_s)", ""
        except GatewayError as error:
            problem, said = str(error), error.said if isinstance(error, RequestRefused) else ""
        # A separate error, since the answerer's could be taken as a failure of this call's connection.
        words = f"{kind}: {problem}{said and ': '}{said}"
        self.broken = RequestRefused(words, server=self.server, tool=self.tool)
        raise Refused(problem)

    def refuse(self, kind: RequestKind, params: Mapping[str, Any], reason: str) -> NoReturn:
        """Record a request and refuse it without asking an answerer. Raises `Refused`."""
        event = ServerRequest(
            server=self.server, tool=self.tool, kind=kind, asked=shortened(self.redact(dict(params))), refused=reason
        )
        self.events.add_request(event)
        raise Refused(reason)

    @contextmanager
    def clock_stopped(self) -> Generator[None]:
        """Suspend the call's deadline within the block. Blocks may overlap."""
        # The server waits for the gateway here, which the answerer's own timeout bounds.
        deadline = self.deadline
        # Only the outermost block keeps and restores the deadline: within it several requests may be answered at once.
        if deadline is not None and self._answering == 0:
            self._left_s = deadline.suspend()
        self._answering += 1
        try:
            yield
        finally:
            self._answering -= 1
            if deadline is not None and self._answering == 0:
                deadline.resume(self._left_s)

    def progress(self, progress: object, total: object, message: object) -> None:
        """Record a progress notification; beyond a bound they are only counted."""
        if self._has_room():
            self._note(NotificationKind.PROGRESS, message or "", progress=_number(progress), total=_number(total))

    async def on_progress(self, progress: float, total: float | None, message: str | None) -> None:
        """`progress` as mcp's callback."""
        self.progress(progress, total, message)

    def logged(self, level: object, data: object, *, tool: str | None = None) -> None:
        """Record a log message, unless it is below the server's `log_level`."""
        name = level if isinstance(level, str) and level in RANK else "info"
        if RANK[name] >= self._least and self._has_room():
            self._note(NotificationKind.LOG, data, tool=tool, level=name)

    def _has_room(self) -> bool:
        room = len(self.events.notifications) < ServerEvents.MAX_NOTIFICATIONS
        self.events.more_notifications += not room
        return room

    def _note(self, kind: NotificationKind, text: object, *, tool: str | None = None, **more: Any) -> None:
        # Redacted before it is formatted and cut: quoting changes a secret, and half of one is not found.
        redacted = self.redact(text)
        shown = (redacted if isinstance(redacted, str) else repr(redacted))[:_MAX_TEXT]
        note = Notification(server=self.server, tool=tool or self.tool, kind=kind, text=shown, **more)
        self.events.notifications.append(note)


@dataclass(slots=True)
class OutgoingCall:
    """One call of a session. Not frozen: one is made for each call, and that takes a third of the time."""

    tool: ToolDefinition
    arguments: Mapping[str, Any]
    timeout_s: float
    """Suspended while the server waits for an answer to a request that it made."""
    in_flight: Callable[[], InFlightCall]
    """Makes the record of one attempt, which answers such requests and keeps what the server sends."""


class InFlightCalls:
    """The calls in flight on one connection, and which of them a server's message belongs to.

    A pushed request names no call. In process and over streamable HTTP it arrives in the call's own context; elsewhere
    its call is known only where all calls in flight are one trajectory's, or where its `_meta` names the trajectory.
    """

    def __init__(self) -> None:
        self.running: dict[int, InFlightCall] = {}
        """By progress token."""
        self._tokens = 0

    def open(self, call: InFlightCall) -> int:
        """Register a call that begins; returns its progress token."""
        self._tokens += 1
        self.running[self._tokens] = call
        return self._tokens

    def by_token(self, token: object) -> InFlightCall | None:
        return self.running.get(token) if isinstance(token, int) else None

    def find(self, meta: object, here: Delivery | None) -> list[InFlightCall]:
        """The calls that a message may belong to, all of one trajectory; empty where that is unknown.

        Args:
            here: The delivery of the context that the message arrived in.
        """
        calls = list(self.running.values())
        if (own := next((call for call in calls if call is here), None)) is not None:
            return [own]
        # Notifications arrive here as they were sent: `_meta` may be any JSON value.
        named = cast("Mapping[str, Any]", meta).get(TRAJECTORY_META) if isinstance(meta, Mapping) else None
        if named:
            calls = [call for call in calls if call.trajectory == named]
        return calls if len({call.trajectory for call in calls}) == 1 else []


def not_configured(kind: RequestKind) -> str:
    """Why a request of this kind is refused where no answerer is configured, with the remedy."""
    match kind:
        case RequestKind.ELICITATION:
            remedy = "name the server whose `elicit` tool answers for the user: elicitation: {server: NAME}"
        case RequestKind.SAMPLING:
            remedy = "name a model: sampling: {url: ..., model: ...}"
    return f"{kind} is not configured here ({remedy})"


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:  # hundreds of digits
        return None
