"""The `Channel` protocol: `tools/call` requests beside mcp's session, and reading their responses.

A call is most of what a trajectory sends, so it has a separate path: one parse, one write, no task. All other
messages are mcp's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, cast

from mcp import MCPError
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCResponse, RequestId, jsonrpc_message_adapter
from pydantic import ValidationError

from gateway.transport.delivery import Delivery
from gateway.transport.lines import Json, excess, parse_json


class LeftToSession(Exception):
    """The channel cannot send this request, of which nothing was sent: mcp's session sends it."""


class Channel(Protocol):
    """Sends requests of one connection, any number at a time."""

    async def send(self, request: Json, headers: Mapping[str, str], delivery: Delivery) -> Json:
        """Send a JSON-RPC request and wait for its response; returns the response's result.

        Cancelling it gives up the answer; telling the server is the caller's part.

        Args:
            headers: For transports that have any.
            delivery: Where it is noted how far the request got, and how it broke.

        Raises:
            MCPError: the response is an error.
            ValueError: it is not of the protocol.
            anyio.BrokenResourceError: there is none, as noted on `delivery`.
            LeftToSession: as described there.
        """
        ...


def read_json(data: bytes) -> Json:
    """A JSON object. Raises ValueError for anything else, and for one nested more than 200 deep."""
    message: Any = parse_json(data)
    if not isinstance(message, dict):
        raise ValueError("the answer is no JSON-RPC message")
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
                raise ValueError("the answer is no JSON-RPC response")
    if problem := excess(cast("Json", result)):
        raise ValueError(problem)
    return cast("Json", result)


def typed(message: Json) -> JSONRPCMessage:
    """mcp's form of a message. Raises ValueError where it is none."""
    try:
        return jsonrpc_message_adapter.validate_python(message, by_name=False)
    except ValidationError as error:
        raise ValueError("the server's answer is not a valid JSON-RPC message") from error
