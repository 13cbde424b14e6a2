"""JSON-RPC messages of a server: parsed within bounds, and read. A bad one affects no other. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from mcp import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCResponse,
    RequestId,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError
from pydantic_core import from_json, to_json

from mcp_rollout.gateway.transport.delivery import GatewayAnswer
from mcp_rollout.mcp_wire.lines import Oversize

Json = dict[str, Any]

_MOST_ITEMS, MOST_TOOLS = 10_000, 20_000
"""Of one list in a result: content blocks, resources, prompts; and tools of one listing."""
_MOST_VALUES = 200_000
"""JSON values and names in one message. A parser takes up to half a microsecond for each, and nothing interrupts it."""
_MOST_REPAIRED = 40_000
"""Values in a message with lone surrogates or bad UTF-8, for which a slower parser is needed, and that twice."""
_MOST_DIGITS = 4000
"""Of an integer. Python's own limit for reading one is 4,300."""
_LARGE = 256 << 10
_LONG, _MOST_LONG = 400, 200_000
"""Digits of a long integer, and of all long ones in one message: reading and writing one takes time in their square."""
_HALF_A_PAIR = re.compile("[\ud800-\udfff]")
_MARK = b"\xef\xbb\xbf"
"""A byte order mark, which programs of .NET write before their first text."""


def _count_values(text: bytes | bytearray) -> int:
    """An upper bound on the values and names in JSON text. Above `_MOST_VALUES`, characters in strings do not count."""
    rough = _separators(text)
    if rough <= _MOST_VALUES:
        return rough
    # Without escapes, every quote opens or closes a string: every second piece between quotes is outside of one.
    text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    quotes = text.count(b'"')
    # Two quotes are a string, which is a value or a name: with so many, there is no need to cut them out.
    return quotes // 2 if quotes > 2 * _MOST_VALUES else _separators(b"".join(text.split(b'"')[::2]))


def _separators(text: bytes | bytearray) -> int:
    """Characters that separate values where they are not in strings."""
    return text.count(b",") + text.count(b":") + text.count(b"[") + text.count(b"{")


def _too_many_values(text: bytes | bytearray, most: int = _MOST_VALUES) -> str:
    """Why JSON text is not parsed; empty where it may be."""
    if len(text) <= _LARGE or _count_values(text) <= most:
        return ""
    return f"the message has more than {most} JSON values"


def _most_digits(text: bytes | bytearray) -> int:
    """How many digits the integers in JSON text may have: few where many of them are long."""
    if len(text) <= _LARGE:
        return _MOST_DIGITS
    long = sum(text[at : at + _LONG].isdigit() for at in range(0, len(text), _LONG))
    return _MOST_DIGITS if long * _LONG <= _MOST_LONG else 2 * _LONG


def _parse_json(text: bytes | bytearray) -> tuple[Any, str]:
    """A JSON value, with U+FFFD for bad UTF-8 and lone surrogates, and text for integers of thousands of digits.

    Second, what was replaced.

    A thread would not help with a large one: the parser holds the interpreter's lock until it is done.

    Raises:
        ValueError: it has more than `_MOST_VALUES` values, or is nested deeper than Python reads.
        json.JSONDecodeError: it is not JSON.
    """
    if problem := _too_many_values(text):
        raise ValueError(problem)
    most_digits, long_integers = _most_digits(text), list[str]()

    def integer(digits: str) -> int | str:
        if len(digits) <= most_digits:
            return int(digits)
        long_integers.append(digits)
        return digits

    try:
        if most_digits < _MOST_DIGITS:
            found = from_json(to_json(json.loads(text, parse_int=integer)), cache_strings="none")
            return found, f"an integer has more than {most_digits} digits"
        # Looking up each string of a large text in the parser's cache takes longer than making it.
        return from_json(text, cache_strings="none" if len(text) > _LARGE else "all"), ""
    except (ValueError, RecursionError):
        if problem := _too_many_values(text, _MOST_REPAIRED):
            raise ValueError(problem) from None
    text = bytes(text).removeprefix(_MARK)
    long_integers.clear()
    decoded = text.decode("utf-8", "replace")
    try:
        # json.loads takes what the strict parser refuses: lone surrogates and deep nesting.
        found = json.loads(decoded, parse_int=integer)
        whole, halves = _HALF_A_PAIR.subn("\ufffd", json.dumps(found, ensure_ascii=False))
        found = json.loads(whole)
    except RecursionError:
        raise ValueError("the message is nested too deep") from None
    if long_integers:
        return found, f"an integer has more than {most_digits} digits"
    if halves:
        return found, "a text has half a surrogate pair"
    return found, "a text is not UTF-8" if decoded.encode() != text else ""


def read_json(data: bytes | bytearray) -> Json:
    """A JSON object. Raises ValueError for anything else, and for one nested more than 200 deep."""
    message, _ = _parse_json(data)
    if not isinstance(message, dict):
        raise ValueError("the answer is not a JSON-RPC message")
    return cast("Json", message)


def read_request(data: bytes) -> tuple[Json, str]:
    """As `read_json`, with what was replaced: a server should be sent what its client wrote, or nothing."""
    message, replaced = _parse_json(data)
    if not isinstance(message, dict):
        raise ValueError("it is not one JSON object, which every request is, without batches")
    return cast("Json", message), replaced


def read_line(line: bytes) -> Json | None:
    """The JSON object in a line; None if there is none.

    For an answer that cannot be parsed within bounds it is an error response.
    """
    if line.removeprefix(_MARK).lstrip()[:1] != b"{":
        return None  # every message is an object; anything else is not worth a parser
    try:
        return _parse_json(line)[0]
    # What is not JSON is a server's print. What is beyond a bound may be an answer, whose caller then gets an error.
    except json.JSONDecodeError:
        return None
    except ValueError as error:
        answered = Oversize.of(line).answered_id()
        return unusable_answer(answered, str(error)) if answered is not None else None


def parse_message(found: Json) -> JSONRPCMessage | None:
    """A message in mcp's form; None for what is not a message at all.

    An answer that is not a valid response, or has more items than are handled, becomes an error response, so that its
    caller need not wait for the deadline.
    """
    try:
        return bounded(jsonrpc_message_adapter.validate_python(found, by_name=False))
    except ValidationError:
        unreadable = _unreadable(found.get("id")) if "method" not in found else None
        return jsonrpc_message_adapter.validate_python(unreadable) if unreadable is not None else None


def bounded(message: JSONRPCMessage) -> JSONRPCMessage:
    """The same message, or an error response in place of a result with more items than are handled."""
    if isinstance(message, JSONRPCResponse) and (problem := _excess(message.result)):
        return jsonrpc_message_adapter.validate_python(unusable_answer(message.id, problem))
    return message


def _excess(result: Mapping[str, Any]) -> str:
    """Why a result has more items than are handled; empty where it has not.

    mcp takes some ten microseconds for each content block or tool, and holds the event loop meanwhile.
    """
    for name, value in result.items():
        if isinstance(value, list):
            items, most = len(cast("list[Any]", value)), MOST_TOOLS if name == "tools" else _MOST_ITEMS
            if items > most:
                return f"the result has {items} items under {name[:80]!r}, and the most is {most}"
    return ""


def _unreadable(answered: object) -> Json | None:
    if isinstance(answered, bool) or not isinstance(answered, int | str):
        return None
    return unusable_answer(answered, "the server's answer is not a valid JSON-RPC response")


def unusable_answer(answered: int | str, problem: str) -> Json:
    """An error response in place of an answer that a transport cannot use, so that the caller need not wait."""
    error = {"code": INTERNAL_ERROR, "message": problem, "data": GatewayAnswer(problem)}
    return {"jsonrpc": "2.0", "id": answered, "error": error}


def is_response(message: Json) -> bool:
    return "method" not in message


def answered_id(message: Json) -> RequestId | None:
    """Which request a message answers, as a number where it is one: some servers make text or a fraction of it."""
    found: Any = message.get("id") if is_response(message) else None
    if isinstance(found, float) and found.is_integer():
        return int(found)
    if isinstance(found, str) and found.isascii() and found.isdigit() and len(found) < 19:
        return int(found)
    return found if isinstance(found, int | str) and not isinstance(found, bool) else None


def answers(message: Json, request: RequestId) -> bool:
    """Whether a response is the one to this request."""
    return message.get("id") is not None and answered_id(message) == answered_id({"id": request})


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
    if problem := _excess(cast("Json", result)):
        raise ValueError(problem)
    return cast("Json", result)


def typed(message: Json) -> JSONRPCMessage:
    """mcp's form of a message. Raises ValueError where it is none."""
    try:
        return jsonrpc_message_adapter.validate_python(message, by_name=False)
    except ValidationError as error:
        raise ValueError("the server's answer is not a valid JSON-RPC message") from error
