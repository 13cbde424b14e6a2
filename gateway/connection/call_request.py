"""One `tools/call` request, with what mcp's session adds to each, over the transport's channel or mcp's dispatcher."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import anyio
from mcp.client.session import ClientSession
from mcp.shared.dispatcher import CallOptions, ProgressFnT
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from opentelemetry.trace import ProxyTracerProvider, get_tracer_provider
from pydantic_core import from_json, to_json

from gateway.transport.channel import Channel, Json, LeftToSession
from gateway.transport.delivery import Delivery, Sent

_CANCEL_S = 5.0
"""How long handing over a cancellation may take."""


def send_call(
    session: ClientSession, channel: Channel | None, params: Json, delivery: Delivery, on_progress: ProgressFnT | None
) -> Coroutine[Any, Any, Json]:
    """Send one `tools/call`; returns the raw result. Cancelling it tells the server.

    Args:
        channel: None where the transport has none.
        on_progress: Takes progress where the transport does not pass notifications to the link.

    Raises:
        MCPError, ValueError, anyio.BrokenResourceError: as `Channel.send`.
    """
    options: CallOptions = {}
    request: Json = {"method": "tools/call", "params": {**params, "_meta": dict(params["_meta"])}}
    # The session's own stamp: protocol version and client in `_meta`, headers, and arguments mirrored into headers.
    session._stamp(request, options)  # pyright: ignore[reportPrivateUsage]
    return send_stamped(session, channel, request, options, delivery, on_progress)


async def send_stamped(
    session: ClientSession,
    channel: Channel | None,
    request: Json,
    options: CallOptions,
    delivery: Delivery,
    on_progress: ProgressFnT | None,
) -> Json:
    """Send a request that has the session's stamp; as `send_call`."""
    dispatcher = session._dispatcher  # pyright: ignore[reportPrivateUsage]
    if channel is not None and isinstance(dispatcher, JSONRPCDispatcher) and _untraced():
        try:
            return await _over_channel(dispatcher, channel, request, options, delivery)
        except LeftToSession:
            pass
    if on_progress is not None:
        options["on_progress"] = on_progress
    # A copy: in process the server gets the very objects, and may change them.
    copied = from_json(to_json(request["params"]))
    return await dispatcher.send_raw_request(request["method"], copied, options)


async def _over_channel(
    dispatcher: JSONRPCDispatcher[Any], channel: Channel, request: Json, options: CallOptions, delivery: Delivery
) -> Json:
    # From mcp's counter: both kinds of requests share the line, and their ids must not collide.
    number = delivery.request_id = dispatcher._allocate_id()  # pyright: ignore[reportPrivateUsage]
    try:
        numbered = {"jsonrpc": "2.0", "id": number, **request}
        return await channel.send(numbered, options.get("headers") or {}, delivery)
    except anyio.get_cancelled_exc_class():
        if delivery.sent is not Sent.NOTHING:
            # Over streamable HTTP of 2026-07-28 mcp's transport drops it: there a closed connection means the same.
            # Shielded, since this task is being cancelled.
            with anyio.move_on_after(_CANCEL_S, shield=True):
                reason = {"requestId": number, "reason": "caller cancelled"}
                await dispatcher.notify("notifications/cancelled", reason)
        raise


def _untraced() -> bool:
    """Whether this program has no OpenTelemetry provider. mcp's dispatcher makes a span of each request."""
    return isinstance(get_tracer_provider(), ProxyTracerProvider)
