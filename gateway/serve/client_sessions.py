"""mcp's sessions over HTTP for MCP clients, each with its own events to resume its streams from."""

from __future__ import annotations

from collections import deque
from typing import Any

import anyio
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel import Server
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCResponse
from pydantic_core import to_json

from mcp_rollout.gateway.sdk import SessionManager
from mcp_rollout.gateway.serve.bearers import Bearer
from mcp_rollout.gateway.serve.config import ServeConfig

_MOST_EVENTS, _MOST_EVENT_BYTES = 256, 4 << 20
"""What is kept of a session's events, so that its client can resume a stream that broke."""
_RETRY_MS = 1000
"""After which a client resumes a stream that was closed."""


class RecentEvents(EventStore):
    """The last events of one session's streams.

    A stream resumes after an event that is kept, and lasts until its response. After any other event it ends, and its
    client knows that the answer is lost.

    Args:
        most: Events that are kept.
        most_bytes: Bytes of their messages as JSON. A longer message is not kept, nor any event before it.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._events: deque[tuple[int, str, JSONRPCMessage | None, int]] = deque()
        self._most, self._most_bytes = most, most_bytes
        self._number = self._bytes = 0
        self._arrival, self._closed = anyio.Event(), False

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        size = len(to_json(message, by_alias=True, exclude_none=True)) if message is not None else 0
        self._number += 1
        self._events.append((self._number, stream_id, message, size))
        self._bytes += size
        while len(self._events) > self._most or self._bytes > self._most_bytes:
            self._bytes -= self._events.popleft()[3]
        self._arrived()
        return str(self._number)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """As mcp's, and then what follows: mcp would lose what is stored before it reads the stream itself."""
        last = next((event for event in self._events if str(event[0]) == last_event_id), None)
        if last is None or isinstance(last[2], JSONRPCResponse | JSONRPCError):  # nothing follows a response
            return None
        read, stream, *_ = last
        while not self._closed:
            event = next((event for event in self._events if event[0] > read), None)
            if event is None:
                await self._arrival.wait()
                continue
            number, of, message, _ = event
            if number > read + 1:
                break  # this reader was slower than what is kept
            read = number
            # Without a message it only marks where a stream begins, for a client to resume from.
            if of == stream and message is not None:
                await send_callback(EventMessage(message, str(number)))
                if isinstance(message, JSONRPCResponse | JSONRPCError):
                    break
        return None

    def close(self) -> None:
        """End the streams that were resumed."""
        self._closed = True
        self._arrived()

    def _arrived(self) -> None:
        self._arrival.set()
        self._arrival = anyio.Event()


class ClientSessions(SessionManager):
    """Sessions end when their client deletes them, or after `idle_s` without a request or an open stream."""

    def __init__(self, server: Server[Any], config: ServeConfig) -> None:
        super().__init__(
            server,
            retry_interval=_RETRY_MS,
            session_idle_timeout=config.idle_s,
            max_request_body_size=config.max_request_bytes,
            max_sessions=config.client_sessions,
        )

    @property
    def event_store(self) -> EventStore | None:
        """Another one for each session, which mcp makes with it: streams are numbered by session only."""
        return RecentEvents(_MOST_EVENTS, _MOST_EVENT_BYTES)

    @event_store.setter
    def event_store(self, given: EventStore | None) -> None:
        pass

    async def end_all(self) -> None:
        """End every session and its streams, which uvicorn would wait for."""
        for transport in list(self.transports().values()):
            await transport.terminate()


def user_of(bearer: Bearer) -> AuthenticatedUser:
    """A bearer as mcp compares it with the one that began a session."""
    return AuthenticatedUser(AccessToken(token="", client_id=bearer.name, scopes=[]))
