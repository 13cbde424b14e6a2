"""The way back to an MCP client: what a server sends within the client's request, and beside it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import anyio
import structlog
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.shared.dispatcher import Outbound
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import INTERNAL_ERROR, INVALID_REQUEST, ClientCapabilities

from mcp_rollout.gateway import sdk
from mcp_rollout.gateway.connection.relay import ErrorAnswer, Json, Relay
from mcp_rollout.gateway.errors import GatewayError

log = structlog.get_logger(__name__)

_MOST_WAITING = 1000
"""Notifications that wait for a client, and requests that wait for its answer; further ones are dropped or refused."""
_CAPABILITIES = {"elicitation/create": "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots"}


class ClientRelay:
    """Passes to one client, in order and without making the server wait, what the server sends.

    Args:
        channel: mcp's, of one request of the client or of its session.
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
        self._answer_s, self._asked = answer_s, 0
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

    def may_ask(self, method: str) -> bool:
        """Whether the client has declared that it answers this method."""
        return getattr(self._capabilities, _CAPABILITIES.get(method, ""), None) is not None

    async def request(self, method: str, params: Json) -> Json:
        """As `Relay.request`."""
        if not self._answers or not self.may_ask(method):
            raise ErrorAnswer({"code": INVALID_REQUEST, "message": f"the client does not take {method} here"})
        # Outside of calls nothing else bounds how many a server sends.
        if self._asked >= _MOST_WAITING:
            raise ErrorAnswer({"code": INVALID_REQUEST, "message": f"the client has {self._asked} requests to answer"})
        self._asked += 1
        try:
            return await self._channel.send_raw_request(method, params, {"timeout": self._answer_s})
        except MCPError as error:
            raise ErrorAnswer(error.error.model_dump(exclude_none=True)) from error
        finally:
            self._asked -= 1

    async def passing(self, answer: Awaitable[Json]) -> Json:
        """The answer, after all notifications before it were passed. Raises what it raises."""
        broken: ErrorAnswer | GatewayError | None = None
        result: Json = {}
        # Both ends are closed when the request is cut, too: what the server still sends is then dropped, not kept.
        with self._send, self._receive:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.pump)
                try:
                    result = await answer
                except (ErrorAnswer, GatewayError) as error:
                    broken = error  # raised below: the task group would wrap it
                # The group waits for `pump`, and so the result for the notifications that came before it.
                self._send.close()
        if self._dropped:
            log.warning("serve.notifications_dropped", number=self._dropped)
        if broken is not None:
            raise broken
        return result

    def close(self) -> None:
        """Pass nothing more."""
        self._send.close()

    async def pump(self) -> None:
        """Pass notifications on until it is closed."""
        with self._receive:
            async for method, params in self._receive:
                await self._channel.notify(method, params)


Begin = Callable[[Relay], Awaitable[Json]]
"""Begins a request, with the way back to its client. Raises `ErrorAnswer`, `GatewayError`."""
_DEFECT: Json = {"code": INTERNAL_ERROR, "message": "the request failed within this server; its log has more"}


class PassedRequest(Relay):
    """A client's request that runs in a task of the server's, and may outlive the HTTP request that began it.

    It is the way back to the stream that its client has at the moment.
    """

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self._relay: ClientRelay | None = None
        self._outcome: Json | ErrorAnswer | GatewayError | None = None
        """None until it has ended, and where it was cancelled."""

    async def run(self, begin: Begin) -> None:
        """Run it to its end, and keep the outcome."""
        try:
            with self.scope:
                self._outcome = await begin(self)
        except (ErrorAnswer, GatewayError) as error:
            self._outcome = error
        except Exception:  # boundary: this task shares its group with every lease; a server's odd result ends this one
            log.exception("serve.request_failed")
            self._outcome = ErrorAnswer(_DEFECT)
        finally:
            self._over()

    def _over(self) -> None:
        """It has ended: wake what waits for it."""
        raise NotImplementedError


def relay_of(context: ServerRequestContext[Any, Any], answer_s: float) -> ClientRelay:
    """The way back within a client's request."""
    session = context.session
    meta = cast("Json", (context.params or {}).get("_meta") or {})
    return ClientRelay(
        sdk.channel_of(context),
        session.client_capabilities,
        answer_s=answer_s,
        progress_token=meta.get("progressToken"),
        request_id=context.request_id,
        answers=session.can_send_request,
    )
