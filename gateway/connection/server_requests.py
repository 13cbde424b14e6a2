"""Requests and notifications of a server within a call: pushed over the connection, or as rounds of the call itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from contextvars import Context
from typing import Any, cast

import anyio
import mcp_types as mcp
from mcp.client.session import ClientRequestContext, ClientSession
from pydantic import ValidationError

from gateway.connection.in_flight import InFlightCall, Refused
from gateway.errors import RequestRefused
from gateway.schemas.cost import measure
from gateway.server_events import RequestKind
from gateway.transport.delivery import DELIVERY, Delivery
from gateway.transport.wire import first_fault
from gateway.types import TRAJECTORY_META

Params = mcp.ElicitRequestParams | mcp.CreateMessageRequestParams
Answer = mcp.ElicitResult | mcp.CreateMessageResult


class InFlightCalls:
    """The calls in flight on one connection, and which of them a server's message belongs to.

    A pushed request names no call. In process and over streamable HTTP it arrives in the call's own context; elsewhere
    its call is known only where all calls in flight are one trajectory's, or where its `_meta` names the trajectory.
    """

    def __init__(self) -> None:
        self._open: dict[int, InFlightCall] = {}
        self._tokens = 0

    def open(self, call: InFlightCall) -> int:
        """Register a call that begins; returns its progress token."""
        self._tokens += 1
        self._open[self._tokens] = call
        return self._tokens

    def close(self, token: int) -> None:
        self._open.pop(token, None)

    def by_token(self, token: object) -> InFlightCall | None:
        return self._open.get(token) if isinstance(token, int) else None

    def find(self, meta: object, here: Delivery | None) -> list[InFlightCall]:
        """The calls that a message may belong to, all of one trajectory; empty where that is unknown.

        Args:
            here: The delivery of the context that the message arrived in.
        """
        calls = list(self._open.values())
        if (own := next((call for call in calls if call is here), None)) is not None:
            return [own]
        # Notifications arrive here as they were sent: `_meta` may be any JSON value.
        named = cast("Mapping[str, Any]", meta).get(TRAJECTORY_META) if isinstance(meta, Mapping) else None
        if named:
            calls = [call for call in calls if call.trajectory == named]
        return calls if len({call.trajectory for call in calls}) == 1 else []

    def record(self, method: str, params: Mapping[str, Any], context: Context | None) -> None:
        """Record a notification on the call it belongs to; drop it where that is unknown.

        Args:
            context: What it was sent in; None for the current context.
        """
        if method == "notifications/progress":
            if (call := self.by_token(params.get("progressToken"))) is not None:
                call.progress(params.get("progress"), params.get("total"), params.get("message"))
        elif method == "notifications/message":
            here = DELIVERY.get() if context is None else context.get(DELIVERY)
            if calls := self.find(params.get("_meta"), here):
                calls[-1].logged(params.get("level"), params.get("data"), tool=_tools(calls))

    async def elicit(
        self, context: ClientRequestContext, params: mcp.ElicitRequestParams
    ) -> mcp.ElicitResult | mcp.ErrorData:
        """mcp's callback for a pushed elicitation."""
        return await self._pushed(RequestKind.ELICITATION, params, mcp.ElicitResult)

    async def sample(
        self, context: ClientRequestContext, params: mcp.CreateMessageRequestParams
    ) -> mcp.CreateMessageResult | mcp.ErrorData:
        """mcp's callback for a pushed sampling request."""
        return await self._pushed(RequestKind.SAMPLING, params, mcp.CreateMessageResult)

    async def _pushed(self, kind: RequestKind, params: Params, model: type[Any]) -> Any:
        delivery = DELIVERY.get()
        calls = self.find(params.meta, delivery)
        if delivery is not None:
            # The call has begun to run. Our answer is another request, whose fate says nothing about the call's own;
            # this handler has its own context, so nothing needs to be set back.
            delivery.round_done()
            DELIVERY.set(Delivery())
        if not calls:
            problem = (
                "this connection serves several trajectories and the request does not say whose it is"
                " (scope: session or process keeps them apart)"
                if self._open
                else "no call is in flight"
            )
            return mcp.ErrorData(code=mcp.INVALID_REQUEST, message=f"{kind} refused: {problem}")
        with ExitStack() as stopped:
            # Where several calls of the trajectory are in flight, any of them may be the one that waits for the answer.
            for call in calls:
                call.round_done()
                stopped.enter_context(call.clock_stopped())
            try:
                return await _answered(calls[-1], kind, params, model, tool=_tools(calls))
            except Refused as refusal:
                return mcp.ErrorData(code=mcp.INVALID_REQUEST, message=f"{kind} refused: {refusal}")

    def declare(self, session: ClientSession, asks: frozenset[RequestKind]) -> None:
        """Answer undeclared kinds of requests too, with a refusal that the trace records."""
        # mcp declares a capability for each callback it is given, so these are set after the handshake.
        if RequestKind.ELICITATION not in asks:
            session._elicitation_callback = self.elicit  # pyright: ignore[reportPrivateUsage]
        if RequestKind.SAMPLING not in asks:
            session._sampling_callback = self.sample  # pyright: ignore[reportPrivateUsage]


async def answer_round(call: InFlightCall, asked: Mapping[str, mcp.InputRequest]) -> dict[str, Any]:
    """Answer all requests of a round concurrently; returns the answers in the protocol's form, by the round's keys.

    Raises:
        RequestRefused: one of them has no answer, so the call can never be completed.
    """
    answers: dict[str, Any] = {}
    refusals: list[str] = []

    async def one(key: str, request: mcp.InputRequest) -> None:
        try:
            match request:
                case mcp.ElicitRequest(params=params):
                    answer: Answer = await _answered(call, RequestKind.ELICITATION, params, mcp.ElicitResult)
                case mcp.CreateMessageRequest(params=params):
                    answer = await _answered(call, RequestKind.SAMPLING, params, mcp.CreateMessageResult)
                case _:
                    raise Refused(f"{request.method} is not supported here")
            answers[key] = answer.model_dump(by_alias=True, mode="json", exclude_none=True)
        except Refused as refusal:
            refusals.append(str(refusal))

    async with anyio.create_task_group() as tasks:
        for key, request in asked.items():
            tasks.start_soon(one, key, request)
    if refusals:
        broken = call.broken
        where = {"server": call.server, "tool": call.tool}
        raise broken or RequestRefused(f"the server cannot go on without an answer: {refusals[0]}", **where)
    return answers


async def _answered(
    call: InFlightCall, kind: RequestKind, params: Params, model: type[Answer], *, tool: str | None = None
) -> Answer:
    raw = params.model_dump(by_alias=True, mode="json", exclude_none=True)
    if isinstance(params, mcp.ElicitRequestURLParams):
        call.refuse(kind, raw, "elicitation by url needs a browser")
    answer = await call.answer(kind, raw, tool=tool)
    try:
        measure(answer)
        return model.model_validate(answer, by_name=False)
    except ValueError as error:
        fault = first_fault(error) if isinstance(error, ValidationError) else str(error)
        where = {"server": call.server, "tool": call.tool}
        problem = f"{kind}: the answer does not fit the protocol: {fault}"
        call.broken = RequestRefused(problem, **where)
        raise Refused(problem) from error


def _tools(calls: Sequence[InFlightCall]) -> str:
    return " or ".join(dict.fromkeys(call.tool for call in calls))
