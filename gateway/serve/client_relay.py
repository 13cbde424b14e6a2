"""The way back to an MCP client: what a server sends within the client's request."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, cast

import anyio
import structlog
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.shared.dispatcher import Outbound
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import INVALID_REQUEST, ClientCapabilities

from mcp_rollout.gateway import sdk
from mcp_rollout.gateway.connection.relay import ErrorAnswer, Json
from mcp_rollout.gateway.errors import GatewayError

log = structlog.get_logger(__name__)

_MOST_WAITING = 1000
"""Notifications that wait for a client; further ones are dropped."""
_CAPABILITIES = {"elicitation/create": "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots"}


class ClientRelay:
    """Passes to one client, in order and without making the server wait, what the server sends.

    Args:
        channel: mcp's, of one request of the client.
        answer_s: How long the client may take to answer a request.
        progress_token: The client's own for the request.
        request_id: The client's own of the request, by which it knows a subscription.
        answers: Whether the client takes requests there.
    """

    def __init__(
        self,
        channel: Outbound,
        capabilities: ClientCapabilities | None,
        *,
        answer_s: float,
        progress_token: Any = None,
        request_id: Any = None,
        answers: bool = True,
    ) -> None:
        self._channel, self._capabilities, self._answers = channel, capabilities, answers
        self._answer_s = answer_s
        self._progress_token, self._request_id = progress_token, request_id
        self._send, self._receive = anyio.create_memory_object_stream[tuple[str, Json]](_MOST_WAITING)
        self._dropped = 0

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """As `Relay.notify`."""
        passed = dict(params)
        if method == "notifications/progress":
            # The server's is this gateway's own, which numbers the calls on the connection behind.
            passed["progressToken"] = self._progress_token
        elif SUBSCRIPTION_ID_META_KEY in (meta := cast("Json", passed.get("_meta") or {})):
            passed["_meta"] = {**meta, SUBSCRIPTION_ID_META_KEY: self._request_id}
        try:
            # Without waiting for room: this is called while the server's output is read, for other clients, too.
            self._send.send_nowait((method, passed))
        except anyio.WouldBlock:
            self._dropped += 1
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the client's request is answered

    async def request(self, method: str, params: Json) -> Json:
        """As `Relay.request`."""
        declared = getattr(self._capabilities, _CAPABILITIES.get(method, ""), None)
        if not self._answers or declared is None:
            raise ErrorAnswer({"code": INVALID_REQUEST, "message": f"the client does not take {method} here"})
        try:
            return await self._channel.send_raw_request(method, params, {"timeout": self._answer_s})
        except MCPError as error:
            raise ErrorAnswer(error.error.model_dump(exclude_none=True)) from error

    async def passing(self, answer: Awaitable[Json]) -> Json:
        """The answer, after all notifications before it were passed. Raises what it raises."""
        broken: ErrorAnswer | GatewayError | None = None
        result: Json = {}
        # Both ends are closed when the request is cut, too: what the server still sends is then dropped, not kept.
        with self._send, self._receive:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._pump)
                try:
                    result = await answer
                except (ErrorAnswer, GatewayError) as error:
                    broken = error  # raised below: the task group would wrap it
                # The group waits for `_pump`, and so the result for the notifications that came before it.
                self._send.close()
        if self._dropped:
            log.warning("serve.notifications_dropped", number=self._dropped)
        if broken is not None:
            raise broken
        return result

    async def _pump(self) -> None:
        with self._receive:
            async for method, params in self._receive:
                await self._channel.notify(method, params)


def relay_of(context: ServerRequestContext[Any, Any], progress_token: Any, answer_s: float) -> ClientRelay:
    """The way back within a client's request."""
    session = context.session
    return ClientRelay(
        sdk.channel_of(context),
        session.client_capabilities,
        answer_s=answer_s,
        progress_token=progress_token,
        request_id=context.request_id,
        answers=session.can_send_request,
    )
