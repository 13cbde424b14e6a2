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
from typing import Any, cast

import anyio
from mcp import MCPError
from mcp.client.session import ClientSession
from mcp.shared.dispatcher import CallOptions, ProgressFnT
from mcp_types import (
    INTERNAL_ERROR,
    CancelledNotification,
    CancelledNotificationParams,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCResponse,
    RequestId,
    jsonrpc_message_adapter,
)
from opentelemetry.propagate import inject
from opentelemetry.trace import ProxyTracerProvider, SpanKind, StatusCode, get_tracer, get_tracer_provider
from pydantic import ValidationError
from pydantic_core import from_json, to_json

from gateway import sdk
from gateway.transport.delivery import Delivery, Sent
from gateway.transport.lines import Json, excess, parse_json

_CANCEL_S = 5.0
"""How long handing over a cancellation may take."""


_numbers = count(1 << 30)
"""Of requests; above those of mcp's session, which shares the line and counts its own requests from 1."""


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
        number = delivery.request_id = next(_numbers)
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


def read_json(data: bytes) -> Json:
    """A JSON object. Raises ValueError for anything else, and for one nested more than 200 deep."""
    message: Any = parse_json(data)
    if not isinstance(message, dict):
        raise ValueError("the answer is not a JSON-RPC message")
    return cast("Json", message)


def is_response(message: Json) -> bool:
    return "method" not in message


def answers(message: Json, request: RequestId) -> bool:
    """Whether a response is the one to this request. Some servers make text of a number."""
    found = message.get("id")
    return found == request or (isinstance(found, str) and found == str(request))


def result_of(response: Json) -> Json:
    """The result in a response.

    Raises:
        MCPError: it is an error response.
        ValueError: it is neither, or has more items than are handled.
    """
    result = response.get("result")
    if type(result) is not dict or response.get("jsonrpc") != "2.0" or "error" in response or "id" not in response:
        match typed(response):
            case JSONRPCError(error=error):
                raise MCPError(code=error.code, message=error.message, data=error.data)
            case JSONRPCResponse(result=found):
                result = found
            case _:
                raise ValueError("the answer is not a JSON-RPC response")
    if problem := excess(cast("Json", result)):
        raise ValueError(problem)
    return cast("Json", result)


def typed(message: Json) -> JSONRPCMessage:
    """mcp's form of a message. Raises ValueError where it is none."""
    try:
        return jsonrpc_message_adapter.validate_python(message, by_name=False)
    except ValidationError as error:
        raise ValueError("the server's answer is not a valid JSON-RPC message") from error
