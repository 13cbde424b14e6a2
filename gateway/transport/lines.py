"""Split a server's bytes into lines and parse them: linear time, bounded memory, and a bad line affects no other."""

from __future__ import annotations

import json
import re
from typing import Any, cast

from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, JSONRPCMessage, JSONRPCResponse, jsonrpc_message_adapter
from pydantic import ValidationError

from gateway.transport.delivery import GatewayAnswer

_MOST_ITEMS, _MOST_TOOLS = 10_000, 20_000
"""Of one list in a result: content blocks, resources, prompts; and tools of one page."""
_HEAD, _TAIL = 1024, 512
_ID = rb'"id"\s*:\s*("(?:[^"\\]|\\.){0,200}"|-?\d{1,18})'
_ID_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?' + _ID)
_ID_LAST = re.compile(rb"[,{]\s*" + _ID + rb'\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')


class Oversize:
    """A line longer than allowed, reduced to its two ends, one of which has the message's id."""

    def __init__(self, head: bytes, tail: bytes, size: int) -> None:
        self.head, self.tail, self.size = head, tail, size

    def answered_id(self) -> int | str | None:
        """The id of the request that this line answers, if it is an answer."""
        match = _ID_FIRST.match(self.head) or _ID_LAST.search(self.tail)
        if match is None or b'"method"' in self.head:
            return None
        found = json.loads(match.group(1))
        return found if isinstance(found, str) else int(found)


class LineSplitter:
    """Bytes in, lines out; each byte is looked at once, and no more than `limit` bytes of a line are kept."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._line = bytearray()
        self._tail = b""
        self._dropped = 0

    def feed(self, chunk: bytes) -> list[bytes | Oversize]:
        first, *rest = chunk.split(b"\n")
        self._add(first)
        if not rest:
            return []
        lines = [self._cut()]
        last = rest.pop()
        if len(chunk) <= self._limit:
            lines += rest  # no look at each: a flood of short lines would take a tenth of a second a chunk
        else:
            for line in rest:
                self._add(line)
                lines.append(self._cut())
        self._add(last)
        return lines

    def _add(self, part: bytes) -> None:
        if self._dropped or len(self._line) + len(part) > self._limit:
            if not self._dropped:
                self._tail = bytes(self._line[-_TAIL:])
                self._dropped = len(self._line)
                self._line = bytearray((self._line + part[:_HEAD])[:_HEAD])
            self._dropped += len(part)
            self._tail = (self._tail + part[-_TAIL:])[-_TAIL:]
        else:
            self._line += part

    def _cut(self) -> bytes | Oversize:
        line: bytes | Oversize = bytes(self._line)
        if self._dropped:
            line = Oversize(bytes(self._line), self._tail, self._dropped)
            self._dropped, self._tail = 0, b""
        self._line = bytearray()
        return line


def parse_line(line: bytes) -> JSONRPCMessage | None:
    """One message, bad UTF-8 and lone surrogates replaced; None for what is no message at all.

    An answer that is no valid response, is nested deeper or has longer integers than Python reads, or has more items
    than are handled, becomes an error response, so that its caller need not wait for the deadline.
    """
    try:
        return bounded(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValidationError:
        pass
    try:
        # json.loads takes what the strict parser refuses: lone surrogates, which encoding replaces, and deep nesting.
        data = json.loads(line.decode("utf-8", "replace"))
        data = json.loads(json.dumps(data, ensure_ascii=False).encode("utf-8", "replace"))
    except json.JSONDecodeError:
        return None
    except (RecursionError, ValueError):  # ValueError: `sys.get_int_max_str_digits`
        return _unreadable(Oversize(line[:_HEAD], line[-_TAIL:], len(line)).answered_id())
    try:
        return bounded(jsonrpc_message_adapter.validate_python(data, by_name=False))
    except ValidationError:
        if not isinstance(data, dict) or "method" in data:
            return None
        return _unreadable(cast("dict[str, Any]", data).get("id"))


def bounded(message: JSONRPCMessage) -> JSONRPCMessage:
    """The same message, or an error response in place of a result with more items than are handled.

    mcp takes some ten microseconds for each content block or tool, and holds the event loop meanwhile.
    """
    if isinstance(message, JSONRPCResponse):
        for name, value in message.result.items():
            if isinstance(value, list):
                items, most = len(cast("list[Any]", value)), _MOST_TOOLS if name == "tools" else _MOST_ITEMS
                if items > most:
                    problem = f"the result has {items} items under {name[:80]!r}, and the most is {most}"
                    return unusable_answer(message.id, problem)
    return message


def _unreadable(answered: object) -> JSONRPCError | None:
    if isinstance(answered, bool) or not isinstance(answered, int | str):
        return None
    return unusable_answer(answered, "the server's answer is not a valid JSON-RPC response")


def unusable_answer(answered: int | str, problem: str) -> JSONRPCError:
    """An error response in place of an answer that a transport cannot use, so that the caller need not wait."""
    error = ErrorData(code=INTERNAL_ERROR, message=problem, data=GatewayAnswer(problem))
    return JSONRPCError(jsonrpc="2.0", id=answered, error=error)
