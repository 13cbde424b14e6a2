"""What a connection knows of its line: whether it stands, why it went down, what the server last wrote to stderr."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import Context
from typing import Any, Protocol

import anyio

from gateway.errors import StartFault

FOR_MCP = frozenset({"notifications/cancelled", "notifications/subscriptions/acknowledged"})
"""Notifications that mcp itself waits for; all others go to whoever hears for the connection."""

Hear = Callable[[str, Mapping[str, Any] | None, Context | None], None]
"""Takes a notification: its method, its parameters, and the context of the request it came with where there is one."""


class Clean(Protocol):
    """Takes secrets out of a text; `cut_before` where the text is only the end of one."""

    def __call__(self, text: str, *, cut_before: bool = False) -> str: ...


def _as_it_is(text: str, *, cut_before: bool = False) -> str:
    return text


def deaf(method: str, params: Mapping[str, Any] | None, context: Context | None) -> None:
    """Nobody listens."""


class Link:
    """Shared by a connection and its transport; the first reason for going down is the one kept."""

    def __init__(self) -> None:
        self.over = anyio.Event()
        self.handshake_done = False
        """Whether the handshake is done; a transport owes no courtesy to a server that never finished it."""
        self.reason = ""
        self.exhausted = ""
        """What the server used up, where a limit of its entry ended it."""
        self.pid: int | None = None
        """The server's process, where it is one of ours."""
        self.trouble = ""
        """The last fault on a line that still stands, for a start that fails without a better reason."""
        self.fault: StartFault | None = None
        """What `trouble` is, for a remedy."""
        self.stderr_tail: Callable[[], str] = str
        """The server's last words, clean."""
        self.out_of_memory: Callable[[], str] = str
        """Half a sentence where a process that still runs has no memory left; empty elsewhere."""
        self.hear: Hear = deaf
        self.clean: Clean = _as_it_is

    def end(self, reason: str) -> None:
        """The line is down for good. Safe to call again and from callbacks."""
        if not self.over.is_set():
            self.reason = reason
            self.over.set()

    @property
    def down(self) -> str | None:
        """Why the line is down, with the server's last words; None while it stands."""
        return self.describe(self.reason) if self.over.is_set() else None

    def describe(self, reason: str) -> str:
        tail = self.stderr_tail()
        reason = self.clean(reason)
        return f"{reason}; stderr ends: {tail}" if tail else reason
