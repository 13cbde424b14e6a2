"""The streamable HTTP transport: mcp's own, on a client that confines faults to single calls."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import anyio
from mcp.client.streamable_http import streamable_http_client

from gateway.transport.call_guard import CallGuard
from gateway.transport.http_calls import HttpCalls
from gateway.transport.http_client import Address, load_certificates, open_client
from gateway.transport.http_connection import HttpConnections
from gateway.transport.http_request import Requests
from gateway.transport.http_streams import BackgroundPosts, ReadStream, WriteStream
from gateway.transport.link import Link
from gateway.transport.oauth import AuthorizedTransport

if TYPE_CHECKING:
    from gateway.config.models import ServerConfig
    from gateway.transport.oauth import Authority

_SPARE_S = 5.0
"""How much longer than a call's own deadline a read may take, so that the deadline is what ends the call."""


class HttpTransport:
    """mcp's streams over an HTTP client that this connection alone uses.

    Args:
        authority: Has the access tokens for the server, where it needs any.
        connections: Carry the calls, and bound the gateway's posts that are under way.
        patience_s: How much longer than a call a stream may be silent: while a request of the server is answered, and
            in requests that have other bounds.
    """

    def __init__(
        self,
        config: ServerConfig,
        link: Link,
        *,
        connections: HttpConnections,
        authority: Authority | None = None,
        patience_s: float = 0.0,
    ) -> None:
        self._config, self._link, self._connections = config, link, connections
        self._authority, self._patience_s = authority, patience_s
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Any:
        await load_certificates()
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
        background = BackgroundPosts(config.call_timeout_s)
        client = open_client(
            config,
            address,
            authorize=partial(AuthorizedTransport, authority=self._authority) if self._authority else None,
            guard=partial(
                CallGuard,
                link=link,
                limit=config.max_message_bytes,
                background=background,
                posts=self._connections.slots,
            ),
            read_timeout_s=config.call_timeout_s + self._patience_s + _SPARE_S,
        )
        requests = Requests(client, address, self._authority)
        async with (
            client,
            background,
            # The guard bounds answers; mcp would report an event that is too large for it like an answer of the server.
            streamable_http_client(address.url, http_client=client, max_sse_event_size=None) as (read, write),
            anyio.create_task_group() as pumping,
        ):
            inbound = ReadStream(read, link)
            pumping.start_soon(inbound.pump)
            calls = HttpCalls(config, link, requests=requests, connections=self._connections, inbound=inbound)
            link.channel = calls
            try:
                yield inbound, WriteStream(write)
            finally:
                # Before the client closes: later calls go to mcp's session, which reports the closed connection; those
                # under way end here.
                link.channel = None
                calls.close("the connection was closed")
                pumping.cancel_scope.cancel()
