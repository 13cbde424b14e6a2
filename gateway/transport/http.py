"""The streamable HTTP transport: mcp's session over the connections that carry the calls.

A message is posted by the task that writes it, in its context, so that a fault ends one request and not the session.
Nothing else waits for messages without a response, such as answers to a server's requests: these are posted in the
background.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from contextvars import Context, copy_context

import anyio
import mcp_types as mcp
import structlog
from anyio.abc import TaskGroup
from mcp import MCPError
from mcp.client.session import DISCOVER_TIMEOUT_SECONDS
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcp_rollout.gateway.config.models import ServerConfig
from mcp_rollout.gateway.transport.delivery import DELIVERY, Broke, Delivery, GatewayAnswer
from mcp_rollout.gateway.transport.http_address import load_certificates
from mcp_rollout.gateway.transport.http_answer import HttpFault, StatusFault
from mcp_rollout.gateway.transport.http_calls import HttpCalls
from mcp_rollout.gateway.transport.http_connection import HttpConnections
from mcp_rollout.gateway.transport.http_exchange import Exchanges, explain_start
from mcp_rollout.gateway.transport.link import Link
from mcp_rollout.gateway.transport.messages import Json, bounded, typed
from mcp_rollout.gateway.transport.unmatched import HANDSHAKE
from mcp_rollout.mcp_wire.streams import OpenStream

log = structlog.get_logger(__name__)

_SILENT_S = 300.0
"""How long the session's own subscription may be silent: its server may have gone away without a word."""
_POSTS_AT_ONCE = 8
_MOST_WAITING_POSTS = 1000


@asynccontextmanager
async def http_streams(
    config: ServerConfig, link: Link, *, connections: HttpConnections
) -> AsyncGenerator[tuple[ReadStream, WriteStream]]:
    """The streams that mcp's session works on; `link` gets the channel.

    Args:
        connections: Those of the gateway.
    """
    await load_certificates()
    exchanges = Exchanges(config, connections=connections)
    inbound = ReadStream()
    calls = HttpCalls(link, exchanges, inbound.put)
    try:
        async with anyio.create_task_group() as tasks:
            link.carry(calls)
            try:
                yield inbound, WriteStream(config, link, exchanges, calls, inbound, tasks)
            finally:
                exchanges.close(link.reason or "the connection was closed")
                tasks.cancel_scope.cancel()
    finally:
        await inbound.aclose()
        if exchanges.requests.session_id:
            # Half of what is left: a server that does not answer it must not hide why a start failed.
            left_s = (anyio.current_effective_deadline() - anyio.current_time()) / 2
            with suppress(HttpFault), anyio.move_on_after(min(left_s, config.close_timeout_s)):
                (await exchanges.open("DELETE", {}, None, Delivery(nested=True))).leave(answered=True)


class ReadStream(OpenStream):
    """Messages of the server, each with the context of the request that it arrived within.

    Without a buffer: mcp's dispatcher takes one message before the next is read from the socket, so a flood is held
    back there.
    """

    def __init__(self) -> None:
        self._send, self._receive = anyio.create_memory_object_stream[tuple[SessionMessage, Context]](0)
        self.last_context: Context | None = None
        """The context that the last message was put in; mcp's dispatcher reads it."""

    async def put(self, message: SessionMessage) -> None:
        """Add a message that arrived in the caller's context. Raises `BrokenResourceError` once it is closed."""
        try:
            await self._send.send((message, copy_context()))
        except anyio.ClosedResourceError:
            raise anyio.BrokenResourceError from None

    async def receive(self) -> SessionMessage:
        message, self.last_context = await self._receive.receive()
        return message

    async def aclose(self) -> None:
        self._receive.close()
        self._send.close()

    def __aiter__(self) -> ReadStream:
        return self

    async def __anext__(self) -> SessionMessage:
        return await self.receive()  # which ends with the task that reads it

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class WriteStream(OpenStream):
    """Posts the messages of mcp's session."""

    def __init__(
        self,
        config: ServerConfig,
        link: Link,
        exchanges: Exchanges,
        calls: HttpCalls,
        inbound: ReadStream,
        tasks: TaskGroup,
    ) -> None:
        self._most_s = config.call_timeout_s
        self._link, self._exchanges, self._calls, self._inbound, self._tasks = link, exchanges, calls, inbound, tasks
        self._slots = anyio.CapacityLimiter(_POSTS_AT_ONCE)
        self._waiting = 0

    async def send(self, item: SessionMessage, /) -> None:
        """Post a message, and a request until its response is there.

        Raises:
            MCPError: a request has no response that mcp could read.
        """
        message, headers = item.message, dict[str, str]()
        if isinstance(item.metadata, ClientMessageMetadata):
            headers = item.metadata.headers or headers
        self._exchanges.requests.learn(version=headers.get(MCP_PROTOCOL_VERSION_HEADER))
        if isinstance(message, mcp.JSONRPCRequest):
            await self._request(message, headers)
            return
        body = message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        method = message.method if isinstance(message, mcp.JSONRPCNotification) else ""
        if method == "notifications/initialized":  # a server may refuse requests that overtake it
            await self._post(headers, body)
            if self._exchanges.requests.session_id:
                # No call before the server was asked for its own stream: it may take a later GET for a resumption.
                self._tasks.start_soon(self._calls.listen, sent := anyio.Event())
                await sent.wait()
        # From 2026-07-28 on a closed connection means the same, and clients send no notifications.
        elif method == "notifications/cancelled" and self._exchanges.requests.version in MODERN_PROTOCOL_VERSIONS:
            pass
        # A few at a time, since each takes a connection, and only so many wait: a server that sends requests faster
        # than it takes the answers gets no answer to some.
        elif self._waiting < _MOST_WAITING_POSTS:
            self._waiting += 1
            self._tasks.start_soon(self._post_in_turn, headers, body)

    async def _request(self, message: mcp.JSONRPCRequest, headers: Mapping[str, str]) -> None:
        delivery, requests = DELIVERY.get() or Delivery(), self._exchanges.requests
        # A new attempt: what broke the one before it does not count any more.
        delivery.mend()
        if message.method == "initialize":  # it negotiates anew, whatever was tried before
            requests.learn(session_id="", version="")
        request: Json = message.model_dump(by_alias=True, mode="json", exclude_unset=True)
        try:
            # mcp's own clock for this request runs from the end of its write, which here includes the response.
            with anyio.fail_after(DISCOVER_TIMEOUT_SECONDS if message.method == "server/discover" else None):
                response = await self._calls.response(request, headers, delivery, silent_s=_SILENT_S)
            answer = bounded(typed({**response, "id": message.id}))
        except TimeoutError as error:
            raise MCPError(mcp.REQUEST_TIMEOUT, "the server does not answer server/discover") from error
        except HttpFault as fault:
            delivery.break_off(fault.broke, fault.reason)
            explain_start(self._link, fault)
            raise _as_error(fault, message.method, delivery) from fault
        except ValueError as error:
            raise MCPError(mcp.PARSE_ERROR, str(error), GatewayAnswer(str(error))) from error
        await self._inbound.put(SessionMessage(answer))

    async def _post_in_turn(self, headers: Mapping[str, str], body: bytes) -> None:
        try:
            # The wait for its turn included: a server that takes no answers leaves none waiting for longer.
            with anyio.move_on_after(self._most_s):
                async with self._slots:
                    await self._post(headers, body)
        except Exception as error:  # boundary: nothing waits for it, and it ends nothing else
            log.warning("http.post_failed", problem=type(error).__name__)
        finally:
            self._waiting -= 1

    async def _post(self, headers: Mapping[str, str], body: bytes) -> None:
        try:
            # Without a slot: a call may wait for this.
            connection = await self._exchanges.open("POST", headers, body, Delivery(nested=True))
        except HttpFault as fault:
            explain_start(self._link, fault)
            return
        if connection.answer.status >= 300:
            explain_start(self._link, StatusFault(connection.answer))
        connection.leave(answered=True)


def _as_error(fault: HttpFault, method: str, delivery: Delivery) -> MCPError:
    """A fault as mcp expects it, which takes some for an earlier protocol and tries that."""
    code, data = mcp.INTERNAL_ERROR, GatewayAnswer(fault.reason, delivery)
    if isinstance(fault, StatusFault) and (said := fault.error) is not None:
        return MCPError(said.code, said.message, said.data if method in HANDSHAKE else data)
    if isinstance(fault, StatusFault) and fault.status == 404 and fault.broke is Broke.LINE:
        code = mcp.METHOD_NOT_FOUND
    return MCPError(code, fault.reason, data)
