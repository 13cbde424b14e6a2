"""How far one request got, and whether anybody still waits for its answer: shared by its caller and its transport."""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import Self

import anyio

_AT_ONCE = 5
_PERIOD_S = 1.0


@dataclass(slots=True)
class Pace:
    """A few times at once, then once a second."""

    _next: float = -math.inf

    def wait_s(self, now: float) -> float:
        """How long to wait before doing it again, which is counted as done."""
        self._next = max(self._next, now - _AT_ONCE * _PERIOD_S) + _PERIOD_S
        return max(0.0, self._next - now)


@dataclass(slots=True)
class Delivery:
    """How far one request got. The transport writes it, the connection reads it when the request fails.

    What is sent within `with Delivery() as delivery` is that request; at the end nobody waits for an answer any more.
    """

    handed_over: bool = False
    """Bytes of the request have left this program: it may have been read."""
    refused: str = ""
    """Why the request surely did not run: nobody listened, or the server turned it away unread."""
    lost: str = ""
    """Why there will be no answer although the request may have run."""
    oversize: bool = False
    rounds: int = 0
    """How often the server has answered the call by asking for something first."""
    session_over: bool = False
    """The server has ended the protocol session: the connection is of no more use."""
    over: bool = False
    """Nobody waits for an answer any more."""
    pace: Pace = field(default_factory=Pace)
    """Of attempts to get the rest of an answer that broke off."""
    _awaited: set[anyio.CancelScope] = field(default_factory=set[anyio.CancelScope])
    _outer: Token[Delivery | None] | None = None

    def __enter__(self) -> Self:
        self._outer = DELIVERY.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._outer is not None
        DELIVERY.reset(self._outer)
        self.over = True
        for scope in tuple(self._awaited):
            scope.cancel()

    @contextmanager
    def awaited(self) -> Generator[None]:
        """What is done within the block is given up, without an error, once nobody waits for it."""
        scope = anyio.CancelScope()
        if self.over:
            scope.cancel()
        self._awaited.add(scope)
        try:
            with scope:
                yield
        finally:
            self._awaited.discard(scope)


DELIVERY: ContextVar[Delivery | None] = ContextVar("delivery", default=None)
"""The request being sent in this context; transports run in the caller's context or in a copy of it."""
