"""Split bytes into lines: linear time, bounded memory."""

from __future__ import annotations

import json
import re
import sys

_HEAD, _TAIL = 1024, 512
_ID = rb'"id"\s*:\s*("(?:[^"\\]|\\.){0,200}"|-?\d{1,18})'
_ID_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?' + _ID)
_ID_LAST = re.compile(rb"[,{]\s*" + _ID + rb'\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')


class Oversize:
    """A line longer than allowed, reduced to its two ends, one of which has the message's id."""

    def __init__(self, head: bytes, tail: bytes, size: int) -> None:
        self.head, self.tail, self.size = head, tail, size

    @classmethod
    def of(cls, line: bytes) -> Oversize:
        return cls(line[:_HEAD], line[-_TAIL:], len(line))

    def answered_id(self) -> int | str | None:
        """The id of the request that this line answers, if it is an answer."""
        match = _ID_FIRST.match(self.head) or _ID_LAST.search(self.tail)
        if match is None or b'"method"' in self.head:
            return None
        try:
            found: str | int = json.loads(match.group(1))
        except ValueError:  # the line is no JSON
            return None
        return found


class LineSplitter:
    """Bytes in, lines out; each byte is looked at once.

    Args:
        limit: Bytes of a line. No more than these are kept of it.
    """

    def __init__(self, limit: int = sys.maxsize) -> None:
        self._limit = limit
        self._line = bytearray()
        self._tail = b""
        self._dropped = 0

    def feed(self, chunk: bytes) -> list[bytes | Oversize]:
        if not self._line and not self._dropped and chunk.endswith(b"\n") and len(chunk) <= self._limit:
            return list[bytes | Oversize](chunk[:-1].split(b"\n"))  # whole lines, as nearly always
        first, *rest = chunk.split(b"\n")
        self._add(first)
        if not rest:
            return []
        lines = [self.rest()]
        last = rest.pop()
        if len(chunk) <= self._limit:
            lines += rest  # no look at each: a flood of short lines would take a tenth of a second a chunk
        else:
            for line in rest:
                self._add(line)
                lines.append(self.rest())
        self._add(last)
        return lines

    def rest(self) -> bytes | Oversize:
        """What has arrived since the last line's end."""
        line: bytes | Oversize = bytes(self._line)
        if self._dropped:
            line = Oversize(bytes(self._line), self._tail, self._dropped)
            self._dropped, self._tail = 0, b""
        self._line = bytearray()
        return line

    def _add(self, part: bytes) -> None:
        # Too long: keep the two ends, since the id of an answer is in one of them and its caller can be given an error.
        if self._dropped or len(self._line) + len(part) > self._limit:
            if not self._dropped:
                self._tail = bytes(self._line[-_TAIL:])
                self._dropped = len(self._line)
                self._line = bytearray((self._line + part[:_HEAD])[:_HEAD])
            self._dropped += len(part)
            self._tail = (self._tail + part[-_TAIL:])[-_TAIL:]
        else:
            self._line += part
