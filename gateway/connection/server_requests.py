"""Requests and notifications of a server within a call: pushed over the connection, or as rounds of the call itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, cast

import anyio
import mcp_types as mcp
from mcp.client.session import ClientRequestContext, ClientSession
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from pydantic import BaseModel, TypeAdapter, ValidationError

from mcp_rollout.gateway import sdk
from mcp_rollout.gateway.connection.in_flight import InFlightCall, InFlightCalls, Refused
from mcp_rollout.gateway.connection.relay import ErrorAnswer, Json, without_own
from mcp_rollout.gateway.errors import RequestRefused
from mcp_rollout.gateway.schemas.extent import measure
from mcp_rollout.gateway.server_events import RequestKind
from mcp_rollout.gateway.transport.delivery import DELIVERY, Delivery
from mcp_rollout.gateway.transport.tool_definitions import first_fault

_SAMPLED = mcp.CreateMessageResult | mcp.CreateMessageResultWithTools
Params = mcp.ElicitRequestParams | mcp.CreateMessageRequestParams
ClientResult = mcp.ElicitResult | mcp.CreateMessageResult


class ServerRequests:
    """Takes what the server of one connection sends beside answers, and answers its requests.

    Args:
        redact: Replaces the server's secrets in what passes to MCP clients.
    """

    def __init__(self, in_flight: InFlightCalls, redact: Callable[[Any], Any]) -> None:
        self._in_flight, self._redact = in_flight, redact

    def record(self, method: str, params: Mapping[str, Any]) -> None:
        """Record a notification on the call it belongs to; drop it where that is unknown."""
        if self._relay(method, params):
            return
        if method == "notifications/progress":
            if (call := self._in_flight.by_token(params.get("progressToken"))) is not None:
                call.progress(params.get("progress"), params.get("total"), params.get("message"))
        elif method == "notifications/message":
            if calls := self._in_flight.find(params.get("_meta"), DELIVERY.get()):
                calls[-1].logged(params.get("level"), params.get("data"), tool=_tools(calls))

    def _relay(self, method: str, params: Mapping[str, Any]) -> bool:
        """Pass a notification to the client that it is for; False where it is for none."""
        given: Any = params.get("_meta")
        meta = cast("Mapping[str, Any]", given) if isinstance(given, Mapping) else Json()
        subscription = meta.get(SUBSCRIPTION_ID_META_KEY)
        calls = list(self._in_flight.running.values())
        if method == "notifications/progress":
            call = self._in_flight.by_token(params.get("progressToken"))
        elif subscription is not None:
            call = next((call for call in calls if call.relay and _same_id(call.request_id, subscription)), None)
        elif any(call.relay for call in calls):
            found = self._in_flight.find(meta, DELIVERY.get())
            call = found[-1] if found else None
        else:
            call = None
        relay = call.relay if call is not None else None
        if relay is None:
            return False
        relay.notify(method, self._redact(params))
        return True

    async def list_roots(self, context: ClientRequestContext) -> mcp.ListRootsResult | mcp.ErrorData:
        """mcp's callback for a pushed request for roots, which only clients have."""
        passed = await self._passed_on("roots/list", mcp.RequestParams(_meta=context.meta), mcp.ListRootsResult)
        return passed or mcp.ErrorData(code=mcp.INVALID_REQUEST, message="there are no roots here")

    async def elicit(
        self, context: ClientRequestContext, params: mcp.ElicitRequestParams
    ) -> mcp.ElicitResult | mcp.ErrorData:
        """mcp's callback for a pushed elicitation."""
        passed = await self._passed_on("elicitation/create", params, mcp.ElicitResult)
        return passed or await self._pushed(RequestKind.ELICITATION, params, mcp.ElicitResult)

    async def sample(
        self, context: ClientRequestContext, params: mcp.CreateMessageRequestParams
    ) -> mcp.CreateMessageResult | mcp.ErrorData:
        """mcp's callback for a pushed sampling request."""
        passed = await self._passed_on("sampling/createMessage", params, _SAMPLED)
        return passed or await self._pushed(RequestKind.SAMPLING, params, mcp.CreateMessageResult)

    async def _pushed(self, kind: RequestKind, params: Params, model: type[Any]) -> Any:
        delivery = DELIVERY.get()
        calls = self._in_flight.find(params.meta, delivery)
        if delivery is not None:
            # The call has begun to run. Our answer is another request, whose fate says nothing about the call's own;
            # this handler has its own context, so nothing needs to be set back.
            delivery.round_done()
            DELIVERY.set(Delivery())
        if not calls:
            problem = (
                "this connection serves several trajectories and the request does not say whose it is"
                " (scope: session or process keeps them apart)"
                if self._in_flight.running
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

    async def _passed_on(self, method: str, params: BaseModel, model: Any) -> Any:
        """A client's answer to a pushed request, where one is to be asked; None elsewhere."""
        delivery = DELIVERY.get()
        calls = self._in_flight.find(getattr(params, "meta", None), delivery)
        relay = calls[-1].relay if calls else None
        if relay is None:
            return None
        if delivery is not None:
            delivery.round_done()
            DELIVERY.set(Delivery())
        with ExitStack() as stopped:
            for call in calls:
                call.round_done()
                stopped.enter_context(call.clock_stopped())
            try:
                asked = params.model_dump(by_alias=True, mode="json", exclude_unset=True)
                answer = without_own(await relay.request(method, self._redact(asked)))
                return TypeAdapter(model).validate_python(answer, by_name=False)
            except ErrorAnswer as refused:
                return mcp.ErrorData.model_validate(refused.error)
            except ValidationError as error:
                fault = f"the client's answer does not fit the protocol: {first_fault(error)}"
                return mcp.ErrorData(code=mcp.INTERNAL_ERROR, message=fault)

    def declare(self, session: ClientSession, asks: frozenset[RequestKind]) -> None:
        """Answer undeclared kinds of requests too, with a refusal that the trace records."""
        # mcp declares a capability for each callback it is given, so these are set after the handshake.
        sdk.answer(
            session,
            elicitation=self.elicit if RequestKind.ELICITATION not in asks else None,
            sampling=self.sample if RequestKind.SAMPLING not in asks else None,
        )


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
                    answer: ClientResult = await _answered(call, RequestKind.ELICITATION, params, mcp.ElicitResult)
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
    call: InFlightCall, kind: RequestKind, params: Params, model: type[ClientResult], *, tool: str | None = None
) -> ClientResult:
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


def _same_id(number: int | None, said: object) -> bool:
    return number is not None and str(number) == str(said)


def _tools(calls: Sequence[InFlightCall]) -> str:
    return " or ".join(dict.fromkeys(call.tool for call in calls))
