"""Serving lines of JSON-RPC by callbacks of the event loop, with the direct path in front of the SDK.

The SDK's own stdio transport hands each line from a worker thread to the event loop and back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, cast

import anyio
import pydantic_core
from mcp.server.connection import Connection, NotifyOnlyOutbound
from mcp.server.mcpserver import MCPServer
from mcp.server.runner import modern_error_data
from mcp.shared.dispatcher import CallOptions, coerce_request_id
from mcp.shared.exceptions import NoBackChannelError
from mcp.shared.jsonrpc_dispatcher import (
    cancelled_request_id_from_params,
    handler_exception_to_error_data,
    progress_token_from_params,
)
from mcp.shared.message import SessionMessage
from mcp.shared.transport_context import TransportContext
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    CONNECTION_CLOSED,
    PROTOCOL_VERSION_META_KEY,
    ErrorData,
    JSONRPCError,
    JSONRPCNotification,
    RequestId,
    jsonrpc_message_adapter,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcp_rollout.mcp_servers.kit import sdk
from mcp_rollout.mcp_servers.kit.direct.calls import DirectCalls, as_call
from mcp_rollout.mcp_servers.kit.direct.channel import Channel, scope_type, unasked_end
from mcp_rollout.mcp_servers.kit.direct.pipes import PipeInput, PipeOutput
from mcp_rollout.mcp_servers.kit.direct.streams import Messages, Output

log = logging.getLogger(__name__)

_CALL = b'"tools/call"'
_CANCELLED = b'"notifications/cancelled"'


class LineServer:
    """One client's messages: direct calls are answered here, all others pass to the SDK and back."""

    def __init__(self, calls: DirectCalls | None, output: Output) -> None:
        self._calls, self._output = calls, output
        self._running: dict[RequestId, LineCall] = {}
        self._tasks = set[asyncio.Task[None]]()
        self.to_sdk: Callable[[SessionMessage | Exception], None]

    def receive(self, line: bytes) -> None:
        """Takes one line of input."""
        # A search in the bytes first, so that other messages are parsed only once, below.
        if _CALL in line and self._begin(line):
            return
        try:
            # As the SDK reads it, which replaces bytes that are not UTF-8.
            message = jsonrpc_message_adapter.validate_json(line.decode("utf-8", "replace"), by_name=False)
        except ValueError as error:  # the SDK handles what is not a message
            self.to_sdk(error)
            return
        if _CANCELLED in line and isinstance(message, JSONRPCNotification):
            self._cancel(message)
        # A cancellation goes to the SDK as well: the request it names may be one that the SDK serves.
        self.to_sdk(SessionMessage(message))

    async def end(self) -> None:
        """The client is gone: the calls in progress are answered, cancelled and waited for, as by the SDK."""
        for call in list(self._running.values()):
            self._fail(call.request_id, ErrorData(code=CONNECTION_CLOSED, message="Connection closed"))
            call.end()
        await self.answered()

    async def answered(self) -> None:
        """Waits until no direct call is in progress."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _begin(self, line: bytes) -> bool:
        """Starts a direct call; False if the SDK has to serve the message."""
        calls, connection = self._calls, self._calls.connection if self._calls is not None else None
        # Nothing was served yet: the handshake, or the first request, is the SDK's.
        if calls is None or connection is None:
            return False
        try:
            message = as_call(pydantic_core.from_json(line))
        except ValueError:
            return False
        if message is None:
            return False
        number, params = message["id"], message["params"]
        version = _version_of(params, connection)
        if version is None or not calls.admits(params, version):
            return False
        call = LineCall(number, params, version, connection, self._output)
        # A further request with the id of one in progress takes its place in the table, as it does in the SDK's.
        self._running[coerce_request_id(number)] = call
        call.task = asyncio.get_running_loop().create_task(self._run(calls, call))
        self._tasks.add(call.task)
        return True

    async def _run(self, calls: DirectCalls, call: LineCall) -> None:
        result, error = None, None
        try:
            with call.begin():
                try:
                    result = await calls.answer(call.params, call.version, call.connection, call)
                except Exception as failure:  # the boundary of a request: every failure has an answer
                    error = _error_data(failure, call.version)
                except BaseException as failure:  # the same boundary: unless the call was ended
                    if call.cancelled:
                        raise
                    error = unasked_end(failure)
        finally:
            # In `finally`, before the entry is removed: what the tool still sends from its own tasks is dropped.
            call.close()
            key = coerce_request_id(call.request_id)
            if self._running.get(key) is call:
                del self._running[key]
            # Here, not in a callback of the task, which is one more turn of the event loop for each call.
            self._tasks.discard(call.task)
        # Without an outcome the call was cancelled.
        if call.cancelled:
            return
        if error is not None:
            self._fail(call.request_id, error)
        elif result is not None:
            self._succeed(call.request_id, result)

    def _cancel(self, message: JSONRPCNotification) -> None:
        number = cancelled_request_id_from_params(message.params)
        call = None if number is None else self._running.get(coerce_request_id(number))
        if call is not None:
            call.cancel()
            call.end()

    def _succeed(self, number: RequestId, result: dict[str, Any]) -> None:
        body = {"jsonrpc": "2.0", "id": number, "result": result}
        try:
            self._output.write(pydantic_core.to_json(body, inf_nan_mode="null"))
        except ValueError as error:  # a text that UTF-8 cannot hold
            self._fail(number, _error_data(error, ""))

    def _fail(self, number: RequestId, error: ErrorData) -> None:
        message = JSONRPCError(jsonrpc="2.0", id=number, error=error)
        self._output.write(message.model_dump_json(by_alias=True, exclude_unset=True).encode())


class LineCall(Channel):
    """A direct call in progress, run by `task`.

    Notifications go out as lines; requests to the client are the SDK's, which reads the responses.
    """

    task: asyncio.Task[None]

    def __init__(
        self, number: RequestId, params: dict[str, Any], version: str, connection: Connection, output: Output
    ) -> None:
        super().__init__(number, progress_token_from_params(params))
        self.params, self.version, self._connection, self._output = params, version, connection, output
        self._asks = version not in MODERN_PROTOCOL_VERSIONS
        self._scope: anyio.CancelScope | None = None

    def begin(self) -> anyio.CancelScope:
        """The scope to run it in."""
        # Made within the call's task: a callback that reads a line need not run in a task, as a scope has to.
        self._scope = scope_type()()
        if self.cancelled:
            self._scope.cancel()
        return self._scope

    def end(self) -> None:
        """Ends it without an answer, also before its task has begun."""
        self.cancelled = True
        if self._scope is not None:
            self._scope.cancel()

    def connection(self) -> Connection:
        """The SDK's connection: in the handshake era the client's, in the modern one the request's own."""
        if self._asks:
            return self._connection
        meta = self.params["_meta"]
        return Connection.from_envelope(
            self.version,
            meta.get(CLIENT_INFO_META_KEY),
            meta[CLIENT_CAPABILITIES_META_KEY],
            outbound=NotifyOnlyOutbound(self),
        )

    @property
    def transport(self) -> TransportContext:
        return TransportContext(kind="jsonrpc", can_send_request=self._asks)

    @property
    def can_send_request(self) -> bool:
        return self._asks and not self.closed

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        if not self.can_send_request:
            raise NoBackChannelError(method)
        return await self._connection.outbound.send_raw_request(method, params, opts)

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        if self.closed:
            log.debug("dropped %s: the call is over", method)
            return
        await self._output.room()
        self._output.write(notification(method, params).model_dump_json(by_alias=True, exclude_unset=True).encode())


def notification(method: str, params: Mapping[str, Any] | None) -> JSONRPCNotification:
    if params is None:
        return JSONRPCNotification(jsonrpc="2.0", method=method)
    return JSONRPCNotification(jsonrpc="2.0", method=method, params=dict(params))


def _version_of(params: Any, connection: Connection) -> str | None:
    """The protocol version of a request on this connection; None if the SDK would refuse the request."""
    found: Any = cast("dict[str, Any]", params).get("_meta") if type(params) is dict else None
    meta = cast("dict[str, Any]", found) if type(found) is dict else {}
    enveloped = PROTOCOL_VERSION_META_KEY in meta
    if connection.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        return None if enveloped or not connection.initialize_accepted else connection.protocol_version
    if not enveloped or CLIENT_CAPABILITIES_META_KEY not in meta:
        return None
    version = meta[PROTOCOL_VERSION_META_KEY]
    return version if type(version) is str and version in MODERN_PROTOCOL_VERSIONS else None


def _error_data(error: Exception, version: str) -> ErrorData:
    if version in MODERN_PROTOCOL_VERSIONS:
        return modern_error_data(error)
    known = handler_exception_to_error_data(error)
    if known is None:
        log.error("handler for 'tools/call' raised", exc_info=error)
        return ErrorData(code=0, message=str(error))  # the code that the SDK gives in the handshake era
    return known


async def serve_stdio(server: MCPServer, calls: DirectCalls) -> None:
    """Serves until standard input ends. The process has standard streams that are pipes or sockets."""
    lowlevel = sdk.lowlevel_of(server)
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(PipeOutput.standard())
        lines = LineServer(calls, output)
        messages = Messages(lines.end)
        lines.to_sdk = messages.put
        stack.enter_context(PipeInput.standard(lines.receive, messages, output))
        await lowlevel.run(messages, output, lowlevel.create_initialization_options())
        await output.finish()
