"""A server behind a URL, streamable HTTP: mcp's transport on a client whose faults stay with their calls."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Any

import httpx2
from mcp.client.streamable_http import streamable_http_client

from gateway.config.models import ServerConfig
from gateway.transport.address import Address, Addressed
from gateway.transport.background import BackgroundPosts, MarkedWriteStream
from gateway.transport.call_guard import CallGuard
from gateway.transport.discarded_bodies import DiscardedBodies
from gateway.transport.link import Link
from gateway.transport.oauth import Authority, Authorized
from gateway.transport.tap import Tap
from gateway.transport.tls import certificates

_SPARE_S = 5.0
"""Reads outlive the call's own deadline by this much, so that the deadline is what ends a call."""


def open_client(
    config: ServerConfig,
    address: Address,
    authority: Authority | None,
    *,
    read_timeout_s: float | None = None,
    guard: tuple[Link, int, BackgroundPosts] | None = None,
) -> httpx2.AsyncClient:
    """A client for one connection.

    Args:
        read_timeout_s: Between two pieces of an answer; None waits for ever.
        guard: For a `CallGuard` above everything else: the link, the most bytes of an answer, and who sends messages
            that nobody waits for.
    """
    # Not limited: a handshake-era session holds a GET for good, and a full pool would wait for ever.
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
    transport: httpx2.AsyncBaseTransport = httpx2.AsyncHTTPTransport(verify=certificates(), limits=limits)
    if address.hides:
        transport = Addressed(transport, address)
    if authority is not None:
        transport = Authorized(transport, authority)
    transport = DiscardedBodies(transport)
    if guard is not None:
        transport = CallGuard(transport, *guard)
    timeout = httpx2.Timeout(config.start_timeout_s, read=read_timeout_s)
    # Compressed, fifty megabytes fit into fifty kilobytes, and it is the latter that a limit would count.
    headers = httpx2.Headers(dict(config.headers))
    headers["accept-encoding"] = "identity"
    return httpx2.AsyncClient(transport=transport, headers=headers, timeout=timeout)


class HttpTransport:
    """mcp's streams over a client that this connection alone uses.

    Args:
        patience_s: How much longer than a call a stream may be silent: while an answer of ours to a server's request is
            found, and in requests that have bounds of their own.
    """

    def __init__(
        self, config: ServerConfig, link: Link, *, authority: Authority | None = None, patience_s: float = 0.0
    ) -> None:
        self._config, self._link = config, link
        self._authority, self._patience_s = authority, patience_s
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Any:
        return await self._stack.enter_async_context(self._streams())

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(exc_type, exc_val, exc_tb)

    @asynccontextmanager
    async def _streams(self) -> AsyncGenerator[Any]:
        config, link = self._config, self._link
        assert config.url is not None
        address = Address(config.url)
        silence_s = config.call_timeout_s + self._patience_s + _SPARE_S
        aside = BackgroundPosts(config.call_timeout_s)
        guard = link, config.max_message_bytes, aside
        async with (
            open_client(config, address, self._authority, read_timeout_s=silence_s, guard=guard) as client,
            aside,
            streamable_http_client(address.url, http_client=client, max_sse_event_size=config.max_message_bytes) as (
                read,
                write,
            ),
        ):
            yield Tap(read, link), MarkedWriteStream(write)
