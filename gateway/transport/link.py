"""The state of one connection's line, shared by the connection and its transport."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import anyio
from mcp.client.session import ClientSession
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import JSONRPCMessage, JSONRPCNotification

from mcp_rollout.gateway import sdk
from mcp_rollout.gateway.errors import ServerUnavailable
from mcp_rollout.gateway.transport.delivery import Delivery

_FOR_MCP = frozenset({"notifications/cancelled", "notifications/subscriptions/acknowledged"})
"""Notifications that mcp itself handles."""

OnNotification = Callable[[str, Mapping[str, Any] | None], None]
"""Takes the method and parameters of a notification, in the context of the request that it arrived with."""


class Redact(Protocol):
    """Replaces secrets in a text.

    Args:
        cut_before: Whether the text is only the end of a longer one, and may begin with the rest of a secret.
    """

    def __call__(self, text: str, *, cut_before: bool = False) -> str: ...


class Channel(Protocol):
    """Sends requests of one connection, any number at a time."""

    async def send(
        self,
        session: ClientSession,
        request: dict[str, Any],
        headers: Mapping[str, str],
        delivery: Delivery,
        on_progress: ProgressFnT | None = None,
    ) -> dict[str, Any]:
        """Send a request and wait for its response; returns the response's result. Cancelling it tells the server.

        Args:
            session: The connection's, which tells the server of requests that are given up.
            request: Its method and its parameters, with `_meta`; it is kept as it is.
            headers: For transports that have any.
            delivery: Where it is noted how far the request got, and how it broke.
            on_progress: Takes progress where the transport does not pass notifications to the link.

        Raises:
            MCPError: the response is an error.
            ValueError: it is not of the protocol.
            anyio.BrokenResourceError: there is none, as noted on `delivery`.
        """
        ...


class Link:
    """Whether the line is up, why it went down, and what the transport knows about the server behind it.

    The first reason for going down is kept.
    """

    def __init__(self) -> None:
        self.over = anyio.Event()
        """Set when the line is down; it does not come up again."""
        self.handshake_done = False
        """A transport ends a server that never finished its handshake without waiting for it."""
        self.reason = ""
        """Why the line is down."""
        self.exhausted = ""
        """Which limit of its entry ended the server, as half a sentence; empty where none did."""
        self.killed = ""
        """Which signal ended the server, as half a sentence; empty where it ended by itself or was to end."""
        self.stray = ""
        """The beginning of the first line on a server's standard output that was not a message; else empty."""
        self.answered_another = False
        """Whether the server answered a call twice, with different results: one was another call's."""
        self.pid: int | None = None
        """The server's process, where the gateway started it."""
        self.trouble = ""
        """The last fault on a line that is still up, to explain a start that fails without a better reason."""
        self.start_failure: type[ServerUnavailable] = ServerUnavailable
        """The class of error that explains a failed start."""
        self.stderr_tail: Callable[[], str] = str
        """The last lines of the server's standard error, redacted."""
        self.out_of_memory: Callable[[], str] = str
        """Half a sentence where the running process has no memory left; empty elsewhere."""
        self.channel: Channel
        """Carries `tools/call`; set before the connection is opened."""
        self.on_notification: OnNotification = lambda method, params: None
        self.redact: Redact = lambda text, *, cut_before=False: text

    def carry(self, channel: Channel) -> None:
        """Take a transport's channel; of an unknown release of mcp only the session knows what each request needs."""
        if sdk.is_known:
            self.channel = channel

    def is_for_mcp(self, message: JSONRPCMessage) -> bool:
        """Pass a notification to `on_notification`; returns whether mcp's session is to get a message of the server.

        Notifications go there without mcp, which makes tasks of each: a flood of them would delay answers.
        """
        if not isinstance(message, JSONRPCNotification):
            return True
        if message.method != "notifications/cancelled":  # an acknowledged subscription may be a client's
            self.on_notification(message.method, message.params)
        return message.method in _FOR_MCP

    def end(self, reason: str) -> None:
        """Take the line down, permanently. Safe to call again, and from callbacks."""
        if not self.over.is_set():
            self.reason = reason
            self.over.set()

    @property
    def down(self) -> str | None:
        """Why the line is down, with the end of standard error; None while it is up."""
        return self.describe(self.reason) if self.over.is_set() else None

    def describe(self, reason: str) -> str:
        """A redacted reason, with the end of standard error where there is any."""
        tail = self.stderr_tail()
        reason = self.redact(reason)
        return f"{reason}; stderr ends: {tail}" if tail else reason
