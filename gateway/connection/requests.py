"""What a server asks and says within a call: pushed over the connection, or as rounds of the call itself."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import Context
from typing import Any, cast

import anyio
import mcp_types as mcp
from mcp.client.session import ClientRequestContext, ClientSession
from pydantic import ValidationError

from gateway.connection.exchange import EXCHANGE, Exchange, Refused
from gateway.errors import RequestRefused
from gateway.transport.delivery import DELIVERY, Delivery
from gateway.types import TRAJECTORY_META, RequestKind

Params = mcp.ElicitRequestParams | mcp.CreateMessageRequestParams
Answer = mcp.ElicitResult | mcp.CreateMessageResult


class Exchanges:
    """The calls in flight on one connection, and which of them a server's message belongs to.

    A request that is pushed names no call. In process and over streamable HTTP it arrives in the call's own context;
    elsewhere it is known only where all calls in flight are one trajectory's, or where its `_meta` says whose it is.
    """

    def __init__(self) -> None:
        self._open: dict[int, Exchange] = {}
        self._tokens = 0

    def open(self, exchange: Exchange) -> int:
        """Register a call that begins; returns its progress token."""
        self._tokens += 1
        self._open[self._tokens] = exchange
        return self._tokens

    def close(self, token: int) -> None:
        self._open.pop(token, None)

    def by_token(self, token: object) -> Exchange | None:
        return self._open.get(token) if isinstance(token, int) else None

    def find(self, meta: object, here: Exchange | None) -> Exchange | None:
        """Whose message this is; None where that cannot be told.

        Args:
            here: the exchange of the context that the message arrived in.
        """
        calls = list(self._open.values())
        if here is not None and any(here is call for call in calls):
            return here
        # Notifications come here as they were sent: anything may stand where `_meta` belongs.
        named = cast("Mapping[str, Any]", meta).get(TRAJECTORY_META) if isinstance(meta, Mapping) else None
        if named:
            calls = [call for call in calls if call.trajectory == named]
        return calls[-1] if len({call.trajectory for call in calls}) == 1 else None

    def hear(self, method: str, said: Mapping[str, Any], context: Context | None) -> None:
        """Note what the server says by the way on the call it belongs to; it is dropped where that cannot be told.

        Args:
            context: What it was sent in; None for the context of whoever calls this.
        """
        if method == "notifications/progress":
            if (exchange := self.by_token(said.get("progressToken"))) is not None:
                exchange.progress(said.get("progress"), said.get("total"), said.get("message"))
        elif method == "notifications/message":
            here = EXCHANGE.get() if context is None else context.get(EXCHANGE)
            if (exchange := self.find(said.get("_meta"), here)) is not None:
                exchange.logged(said.get("level"), said.get("data"))

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
        if (delivery := DELIVERY.get()) is not None:
            # The call has begun. What happens to the message with our answer says nothing about the call's own.
            delivery.rounds += 1
            DELIVERY.set(Delivery())
        exchange = self.find(params.meta, EXCHANGE.get())
        if exchange is None:
            problem = (
                "this connection serves several trajectories and the request does not say whose it is"
                " (scope: session or process keeps them apart)"
                if self._open
                else "no call is under way"
            )
            return mcp.ErrorData(code=mcp.INVALID_REQUEST, message=f"{kind} refused: {problem}")
        try:
            return await _answered(exchange, kind, params, model)
        except Refused as refusal:
            return mcp.ErrorData(code=mcp.INVALID_REQUEST, message=f"{kind} refused: {refusal}")

    def declare(self, session: ClientSession, asks: frozenset[RequestKind]) -> None:
        """Also answer what was not declared as a capability: with our refusal, which the trace keeps."""
        # mcp declares whatever has a callback, so these go in once the capabilities are settled.
        if RequestKind.ELICITATION not in asks:
            session._elicitation_callback = self.elicit  # pyright: ignore[reportPrivateUsage]
        if RequestKind.SAMPLING not in asks:
            session._sampling_callback = self.sample  # pyright: ignore[reportPrivateUsage]


async def answer_round(exchange: Exchange, asked: Mapping[str, mcp.InputRequest]) -> dict[str, Any]:
    """Answers to all requests of a round, by its keys, found side by side.

    Raises:
        RequestRefused: one of them has no answer, so the call can never be completed.
    """
    answers: dict[str, Any] = {}
    refusals: list[str] = []

    async def one(key: str, request: mcp.InputRequest) -> None:
        try:
            match request:
                case mcp.ElicitRequest(params=params):
                    answers[key] = await _answered(exchange, RequestKind.ELICITATION, params, mcp.ElicitResult)
                case mcp.CreateMessageRequest(params=params):
                    answers[key] = await _answered(exchange, RequestKind.SAMPLING, params, mcp.CreateMessageResult)
                case _:
                    raise Refused(f"{request.method} is not supported here")
        except Refused as refusal:
            refusals.append(str(refusal))

    async with anyio.create_task_group() as tasks:
        for key, request in asked.items():
            tasks.start_soon(one, key, request)
    if refusals:
        broken = exchange.broken
        where = {"server": exchange.server, "tool": exchange.tool}
        raise broken or RequestRefused(f"the server cannot go on without an answer: {refusals[0]}", **where)
    return answers


async def _answered(exchange: Exchange, kind: RequestKind, params: Params, model: type[Answer]) -> Answer:
    worded = params.model_dump(by_alias=True, mode="json", exclude_none=True)
    if isinstance(params, mcp.ElicitRequestURLParams):
        exchange.refuse(kind, worded, "elicitation by url needs a browser")
    answer = await exchange.ask(kind, worded)
    try:
        return model.model_validate(answer, by_name=False)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = {"server": exchange.server, "tool": exchange.tool}
        problem = f"{kind}: the answer is off the protocol: {fault['msg']}"
        exchange.broken = RequestRefused(problem, **where)
        raise Refused(problem) from error
