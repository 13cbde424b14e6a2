"""`Exchange`: one direct call over HTTP, from its message to its answer.

The answer is JSON if the tool sent nothing before it, as the SDK does; with the first notification, or after
`PING_S` of silence, it becomes an event stream whose last event is the answer.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import pydantic_core
from mcp.server.connection import Connection
from mcp.server.runner import modern_error_data
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import NoBackChannelError
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS
from mcp.shared.jsonrpc_dispatcher import progress_token_from_params
from mcp.shared.transport_context import TransportContext
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    JSONRPCError,
    JSONRPCNotification,
)
from starlette.requests import Request

from mcp_rollout.mcp_servers.kit.direct.calls import DirectCalls
from mcp_rollout.mcp_servers.kit.direct.channel import Channel, scope_type, unasked_end
from mcp_rollout.mcp_wire import http_request
from mcp_rollout.mcp_wire.http_request import DirectAnswer

PING_S = 15.0
"""Silence after which a client gets a comment line, so that no proxy closes the connection."""
_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
log = logging.getLogger(__name__)


class Exchange(Channel):
    """A direct call and the response to its request.

    Args:
        request: An admitted one, with its message.
    """

    def __init__(self, request: http_request.Request, message: dict[str, Any]) -> None:
        super().__init__(message["id"], progress_token_from_params(message["params"]))
        self._asked, self._params = request, message["params"]
        self._scope = scope_type()()
        request.on_disconnect = self._disconnected

    @property
    def transport(self) -> TransportContext:
        return TransportContext(kind="streamable-http", can_send_request=False, headers=self._request().headers)

    @property
    def can_send_request(self) -> bool:
        return False

    async def run(self, calls: DirectCalls) -> None:
        """Runs the call and writes its answer."""
        version = self._params["_meta"][PROTOCOL_VERSION_META_KEY]
        status, body, error = 200, None, None
        with self._scope:
            try:
                result = await calls.answer(self._params, version, self._connection, self, self._request)
                body = _encode({"jsonrpc": "2.0", "id": self.request_id, "result": result})
            except Exception as failure:  # the boundary of a request: every failure has an answer
                error = modern_error_data(failure)
            except BaseException as failure:  # the same boundary: unless the client ended the call
                if self.cancelled:
                    raise
                error = unasked_end(failure)
        if error is not None:
            status = ERROR_CODE_HTTP_STATUS.get(error.code, 200)
            message = JSONRPCError(jsonrpc="2.0", id=self.request_id, error=error)
            body = _encode(message.model_dump(mode="json", by_alias=True, exclude_none=True))
        # First: what the tool still sends from its own tasks must not follow the answer on the connection.
        self.close()
        # Without a body the client has left, which cancels the call.
        if body is None or self._asked.is_over:
            return
        if self._asked.response_started:
            self._asked.end_stream(_event(body))
        else:
            self._asked.respond(DirectAnswer(status, body.encode()))

    def _disconnected(self) -> None:
        """The client closed the connection, which is how it cancels a call in this era."""
        self.cancel()
        self._scope.cancel()

    def ping(self) -> None:
        if not self.closed:
            self._asked.send_event(b": ping\r\n\r\n")

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        raise NoBackChannelError(method)

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        if self.closed or self._asked.is_over:
            log.debug("dropped %s: the response is over", method)
            return
        message = JSONRPCNotification(jsonrpc="2.0", method=method, params=None if params is None else dict(params))
        self._asked.send_event(_event(_encode(message.model_dump(mode="json", by_alias=True, exclude_none=True))))
        await self._asked.room()

    def _connection(self) -> Connection:
        meta = self._params["_meta"]
        return Connection.from_envelope(
            meta[PROTOCOL_VERSION_META_KEY], meta.get(CLIENT_INFO_META_KEY), meta[CLIENT_CAPABILITIES_META_KEY]
        )

    def _request(self) -> Request:
        """The request for a tool that reads its headers."""
        return Request(self._asked.direct_scope())


def _encode(message: dict[str, Any]) -> str:
    try:
        return _json(message)
    except ValueError:  # NaN or an infinity, which JSON does not have
        return pydantic_core.to_json(message, inf_nan_mode="null").decode()


def _event(body: str) -> bytes:
    return f"event: message\r\ndata: {body}\r\n\r\n".encode()
