"""Channels: the one way of a connection for `tools/call` requests and for those that clients forward.

A call is most of what a trajectory sends, so a transport of the gateway's own writes it itself: one parse, one write,
no task. All other messages are those of mcp's session, which travel over the same line.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from itertools import count
from secrets import randbelow

import anyio
from mcp import MCPError
from mcp.client.session import ClientSession
from mcp.shared.dispatcher import CallOptions, ProgressFnT
from mcp_types import (
    INTERNAL_ERROR,
    CancelledNotification,
    CancelledNotificationParams,
)
from opentelemetry.propagate import inject
from opentelemetry.trace import ProxyTracerProvider, SpanKind, StatusCode, get_tracer, get_tracer_provider
from pydantic_core import from_json, to_json

from mcp_rollout.gateway import sdk
from mcp_rollout.gateway.transport.delivery import Delivery, Sent
from mcp_rollout.gateway.transport.messages import Json

_CANCEL_S = 5.0
"""How long handing over a cancellation may take."""


numbers = count((1 << 30) + randbelow(1 << 29))
"""Of requests: no two programs behind one proxy use the same; above those that mcp's session counts from 1."""


class OwnChannel(ABC):
    """A channel over a line that mcp's session shares."""

    @abstractmethod
    async def answer(self, request: Json, headers: Mapping[str, str], delivery: Delivery) -> Json:
        """Send a whole JSON-RPC request, as `Channel.send`; cancelling it gives up the answer."""

    async def send(
        self,
        session: ClientSession,
        request: Json,
        headers: Mapping[str, str],
        delivery: Delivery,
        on_progress: ProgressFnT | None = None,
    ) -> Json:
        """As `Channel.send`."""
        number = delivery.request_id = next(numbers)
        numbered = {"jsonrpc": "2.0", "id": number, **request}
        try:
            if isinstance(get_tracer_provider(), ProxyTracerProvider):  # this program traces nothing
                return await self.answer(numbered, headers, delivery)
            with _span(numbered) as traced:
                return await self.answer(traced, headers, delivery)
        except asyncio.CancelledError:
            if delivery.sent is not Sent.NOTHING:
                given_up = CancelledNotificationParams(request_id=number, reason="caller cancelled")
                # Shielded, since this task is being cancelled.
                with anyio.move_on_after(_CANCEL_S, shield=True):
                    await session.send_notification(CancelledNotification(params=given_up))
            raise


class SessionChannel:
    """mcp's session: over SSE, to the SDK's servers in this process, and over transports that `connect=` gave."""

    async def send(
        self,
        session: ClientSession,
        request: Json,
        headers: Mapping[str, str],
        delivery: Delivery,
        on_progress: ProgressFnT | None = None,
    ) -> Json:
        """As `Channel.send`."""
        options: CallOptions = {"headers": {**headers}}
        if on_progress is not None:
            options["on_progress"] = on_progress
        # A copy: in process the server gets the very objects, and may change them.
        params = from_json(to_json(request["params"]))
        try:
            return await sdk.send(session, {**request, "params": params}, options)
        except asyncio.CancelledError as error:
            # There a tool also runs in this very task: what it raises is its answer, unless this task was cancelled.
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            raise MCPError(code=INTERNAL_ERROR, message="the tool raised CancelledError") from error


@contextmanager
def _span(request: Json) -> Generator[Json]:
    """A span of a request, as mcp's session makes it of each of its own; yields the request that carries it."""
    method, params = request["method"], request["params"]
    name = params.get("name")
    with get_tracer("mcp-python-sdk").start_as_current_span(
        f"MCP send {method} {name}" if isinstance(name, str) else f"MCP send {method}",
        kind=SpanKind.CLIENT,
        attributes={"mcp.method.name": method, "jsonrpc.request.id": str(request["id"])},
    ) as span:
        meta = {**params.get("_meta", {})}
        inject(meta)
        try:
            yield {**request, "params": {**params, "_meta": meta}}
            return
        except MCPError as error:
            answer = error
            code = str(error.error.code)
            span.set_attributes({"error.type": code, "rpc.response.status_code": code})
            span.set_status(StatusCode.ERROR, error.error.message)
    raise answer  # out here, since the server's error is an answer and no fault of this program's
