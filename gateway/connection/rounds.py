"""One call of a tool, in as many rounds as its server asks for something first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import anyio
import mcp_types as mcp
from mcp.client.session import ClientSession

from gateway.connection.exchange import Exchange
from gateway.connection.requests import answer_round
from gateway.transport.delivery import Delivery
from gateway.transport.wire import ANSWER, Answer

_MAX_ROUNDS = 10
"""How often a server may answer a call with "come back with this state" before it is off the protocol."""
_ROUND_S = 0.05


async def ask(
    session: ClientSession,
    name: str,
    arguments: Mapping[str, Any],
    meta: Mapping[str, Any],
    exchange: Exchange,
    delivery: Delivery,
    *,
    by_callback: bool,
) -> mcp.CallToolResult:
    """One `tools/call`, without the SDK's second look at the result and without its hidden `tools/list`.

    A server that needs something first is called again with the answers, as often as it may ask.

    Args:
        by_callback: Whether mcp hands on progress; our own transports hand it to the connection themselves.

    Raises:
        RequestRefused: it needs what nobody here can give.
        ValueError: it came back with nothing but a request to call again, too often.
    """
    state: str | None = None
    answers: dict[str, Any] | None = None

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        exchange.progress(progress, total, message)

    callback = on_progress if by_callback else None
    for _ in range(_MAX_ROUNDS):
        params = mcp.CallToolRequestParams(
            name=name,
            arguments=dict(arguments),
            request_state=state,
            input_responses=answers,
            _meta=cast("Any", dict(meta)),
        )
        request = mcp.CallToolRequest(params=params)
        answer: Answer = await session.send_request(request, ANSWER, progress_callback=callback)
        if isinstance(answer, mcp.CallToolResult):
            return answer
        delivery.rounds += 1
        state, answers = answer.request_state, None
        if answer.input_requests:
            answers = await answer_round(exchange, answer.input_requests)
        else:
            await anyio.sleep(_ROUND_S)
    raise ValueError(f"the server postponed its answer {_MAX_ROUNDS} times")
