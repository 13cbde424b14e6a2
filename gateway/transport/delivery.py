"""Track how far a request got and how it broke, and decide whether it may be sent again.

At most once is decided here and nowhere else: transports note facts on the `Delivery` of the request that they carry,
`verdict` is the table over those facts, and only `gateway.leases.sending` acts on it.
"""

from __future__ import annotations

import math
from contextvars import ContextVar, Token
from enum import StrEnum
from typing import Self

_MOST_REDIRECTS = 5
_BURST = 5
_PERIOD_S = 1.0


class Sent(StrEnum):
    """How much of a request left this program."""

    NOTHING = "nothing"
    """No byte of its body: the server cannot have run it."""
    REQUEST = "request"
    """At least a part of its body: the server may have run it."""
    ROUNDS = "rounds"
    """The server has answered it at least once, with a request for input: it has begun to run it."""


class Broke(StrEnum):
    """How a request ended without an answer that can be used."""

    CONNECT = "connect"
    """No connection could be obtained."""
    SESSION = "session"
    """The server answered that it does not know the protocol session (HTTP 404), which it must not run requests of."""
    REJECTED = "rejected"
    """A proxy rejected its own credentials (HTTP 407) and did not pass the request on (RFC 9110, section 15.5.8)."""
    LINE = "line"
    """The connection ended, or an HTTP status came in place of an answer, whatever its number."""
    CONTENT = "content"
    """An answer came and cannot be used: too long, encoded, or not of the protocol."""
    TIMEOUT = "timeout"


class Verdict(StrEnum):
    """Whether a request that broke is sent again."""

    RESEND = "resend"
    """It surely did not run, or running it twice is harmless: it may be sent once more."""
    UNKNOWN = "unknown"
    """It may have run, and running it twice may do harm."""
    REFUSED = "refused"
    """It is not sent again: it ran, or its time is over."""


def verdict(sent: Sent, broke: Broke, *, repeatable: bool) -> Verdict:
    """Whether a broken request may be sent again.

    Args:
        repeatable: Whether the tool is annotated as read-only or idempotent, or numbers its calls (`seq`).
    """
    match sent, broke:
        case _, Broke.CONTENT | Broke.TIMEOUT:
            return Verdict.REFUSED
        case (Sent.NOTHING, _) | (Sent.REQUEST, Broke.SESSION | Broke.REJECTED):
            return Verdict.RESEND
        case _:
            return Verdict.RESEND if repeatable else Verdict.UNKNOWN


class GatewayAnswer:
    """In the `data` of an error response: a transport made it in place of a server's answer that it could not use.

    A server cannot send one, since no JSON value parses to it.

    Args:
        delivery: Of the request, where there was no answer at all. mcp may have written it in another context than its
            caller's, whose `Delivery` then says nothing.
    """

    def __init__(self, problem: str, delivery: Delivery | None = None) -> None:
        self.problem, self.delivery = problem, delivery


class Pace:
    """Spacing of attempts: a burst at once, then one a second."""

    def __init__(self) -> None:
        self._next = -math.inf

    def wait_s(self, now: float) -> float:
        """Count one attempt and return how many seconds to wait before making it."""
        self._next = max(self._next, now - _BURST * _PERIOD_S) + _PERIOD_S
        return max(0.0, self._next - now)


class Delivery:
    """The facts about one request. Transports write them, the connection reads them when the request fails.

    What is sent within `with Delivery() as delivery:` is that request.

    Args:
        nested: Whether a call that is itself in flight waits for this request.
    """

    is_call = False
    """Whether it is one attempt at a call, which only `gateway.leases.sending` sends again."""

    def __init__(self, *, nested: bool = False) -> None:
        self.nested = nested
        self.left = False
        """Whether a part of the request has left this program, or is about to: set before the write."""
        self._begun = False
        self.broke: Broke | None = None
        self.reason = ""
        """Why it broke, for messages."""
        self.request_id: int | None = None
        """Its JSON-RPC id, where it went over a channel."""
        self._pace: Pace | None = None
        self._redirects: set[str] = set()
        self._outer: Token[Delivery | None] | None = None

    @property
    def pace(self) -> Pace:
        """Of attempts to resume the stream of this request's answer."""
        self._pace = self._pace or Pace()
        return self._pace

    @property
    def sent(self) -> Sent:
        """How much of the request left this program."""
        if self._begun:
            return Sent.ROUNDS
        return Sent.REQUEST if self.left else Sent.NOTHING

    def round_done(self) -> None:
        """Note that the server answered with a request for input."""
        self._begun = True
        self._redirects.clear()

    def may_follow(self, url: str, target: str) -> bool:
        """Note that `url` redirected the request to `target`, and return whether it may be sent there.

        A redirect says that the request was not fulfilled (RFC 9110, section 15.4), but it was sent: so a call is sent
        once more and never again, as where `verdict` says so, and nothing is sent to the same place twice.
        """
        self._redirects.add(url)
        most = 1 if self.is_call else _MOST_REDIRECTS
        return target not in self._redirects and len(self._redirects) <= most

    def break_off(self, broke: Broke, reason: str) -> None:
        """Note that the request will not be answered, and why. A later answer to it counts all the same."""
        self.broke, self.reason = broke, reason

    def mend(self) -> None:
        """Note that an answer is under way again, on a new attempt or a resumed stream."""
        self.broke, self.reason = None, ""

    def __enter__(self) -> Self:
        self._outer = DELIVERY.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._outer is not None
        DELIVERY.reset(self._outer)


DELIVERY: ContextVar[Delivery | None] = ContextVar("delivery", default=None)
"""The request being sent in this context. mcp's session writes a request in its caller's context, so transports find
theirs here; it is the gateway's only context variable."""
