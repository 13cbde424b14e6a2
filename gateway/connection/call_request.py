"""One `tools/call` request, with what mcp's session adds to each, over the transport's channel or mcp's dispatcher."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import anyio
from mcp import MCPError
from mcp.client.session import ClientSession
from mcp.shared.dispatcher import CallOptions, ProgressFnT
from mcp_types import INTERNAL_ERROR
from opentelemetry.trace import ProxyTracerProvider, get_tracer_provider
from pydantic_core import from_json, to_json

from gateway import sdk
from gateway.transport.channel import Channel, Json, LeftToSession
from gateway.transport.delivery import Delivery, Sent

_CANCEL_S = 5.0
"""How long handing over a cancellation may take."""


class CallRequests:
    """Makes the `tools/call` requests of one connection, and sends them.

    mcp's session adds the same to each call of a tool: the protocol version and the client to `_meta`, and headers. It
    is asked once for each tool, except where it mirrors arguments into headers.
    """

    def __init__(self) -> None:
        self._session: ClientSession | None = None
        self._handshake: object = None
        self._added: dict[str, tuple[Json, CallOptions]] = {}
        """To `_meta`, and the options with the headers, by tool."""

    def send(
        self,
        session: ClientSession,
        channel: Channel | None,
        params: Json,
        delivery: Delivery,
        on_progress: ProgressFnT | None,
    ) -> Coroutine[Any, Any, Json]:
        """Send one `tools/call`; returns the raw result. Cancelling it tells the server.

        Args:
            channel: None where the transport has none.
            params: With `_meta`; it is kept as it is.
            on_progress: Takes progress where the transport does not pass notifications to the link.

        Raises:
            MCPError, ValueError, anyio.BrokenResourceError: as `Channel.send`.
        """
        added, options = self._of_tool(session, params)
        request: Json = {"method": "tools/call", "params": {**params, "_meta": {**params["_meta"], **added}}}
        return send_stamped(session, channel, request, {**options}, delivery, on_progress)

    def _of_tool(self, session: ClientSession, params: Json) -> tuple[Json, CallOptions]:
        handshake, name = session.discover_result or session.initialize_result, params["name"]
        if session is not self._session or handshake is not self._handshake:
            self._session, self._handshake, self._added = session, handshake, {}
        mirrored = sdk.header_maps(session).get(name)
        if not mirrored and (added := self._added.get(name)) is not None:
            return added
        meta: Json = {}
        options = sdk.stamp(session, {"method": "tools/call", "params": {**params, "_meta": meta}})
        if not mirrored:
            self._added[name] = meta, options
        return meta, options


async def send_stamped(
    session: ClientSession,
    channel: Channel | None,
    request: Json,
    options: CallOptions,
    delivery: Delivery,
    on_progress: ProgressFnT | None,
) -> Json:
    """Send a request that has the session's stamp; as `send_call`."""
    if channel is not None and (next_id := sdk.numbering(session)) is not None and _untraced():
        try:
            return await _over_channel(session, next_id(), channel, request, options, delivery)
        except LeftToSession:
            pass
    if on_progress is not None:
        options["on_progress"] = on_progress
    # A copy: in process the server gets the very objects, and may change them.
    copied = from_json(to_json(request["params"]))
    try:
        return await sdk.send(session, {**request, "params": copied}, options)
    except asyncio.CancelledError as error:
        # There a tool also runs in this very task: what it raises is its answer, unless this task was cancelled.
        if (task := asyncio.current_task()) is None or task.cancelling():
            raise
        raise MCPError(code=INTERNAL_ERROR, message="the tool raised CancelledError") from error


async def _over_channel(
    session: ClientSession, number: int, channel: Channel, request: Json, options: CallOptions, delivery: Delivery
) -> Json:
    delivery.request_id = number
    try:
        numbered = {"jsonrpc": "2.0", "id": number, **request}
        return await channel.send(numbered, options.get("headers") or {}, delivery)
    except anyio.get_cancelled_exc_class():
        if delivery.sent is not Sent.NOTHING:
            # Over streamable HTTP of 2026-07-28 mcp's transport drops it: there a closed connection means the same.
            # Shielded, since this task is being cancelled.
            with anyio.move_on_after(_CANCEL_S, shield=True):
                reason = {"requestId": number, "reason": "caller cancelled"}
                await sdk.notify(session, "notifications/cancelled", reason, {})
        raise


def _untraced() -> bool:
    """Whether this program has no OpenTelemetry provider. mcp's dispatcher makes a span of each request."""
    return isinstance(get_tracer_provider(), ProxyTracerProvider)
