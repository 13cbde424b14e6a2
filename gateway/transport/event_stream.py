"""Server-sent events, parsed from the pieces in which they arrive (WHATWG HTML, section 9.2). No I/O."""

from __future__ import annotations

from collections.abc import Generator

from gateway.transport.delivery import Broke
from gateway.transport.http_answer import HttpFault
from mcp_wire.lines import LineSplitter, Oversize


class EventStream:
    """One event stream.

    Args:
        limit: Bytes of an event.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._unended = self._read = 0
        """Bytes since the last event's end, and how many of them are whole lines."""
        self.brought = False
        """Whether there was an event with data."""
        self._lines = LineSplitter(limit)
        self._after_return = False
        self._event, self._data = b"", list[bytes]()
        self._id = ""
        self.last_id = ""
        """Of the latest event that had one: where the stream can be resumed."""
        self.retry_s: float | None = None
        """How long the server wants a client to wait before that."""

    def resumed(self) -> EventStream:
        """The stream that goes on where this one broke off, without the event that was not complete."""
        again = EventStream(self._limit)
        again.last_id = again._id = self.last_id
        again.retry_s = self.retry_s
        return again

    def feed(self, piece: bytes) -> Generator[bytes]:
        """The data of each event of the type `message` that ends in this piece and has data.

        Raises:
            HttpFault: an event has more bytes than the limit; those before it were returned.
        """
        piece = self._with_plain_line_ends(piece)
        self._unended += len(piece)
        for line in self._lines.feed(piece):
            if isinstance(line, Oversize) or self._read + len(line) >= self._limit:
                break
            self._read += len(line) + 1
            if not line:
                data, event = b"\n".join(self._data), self._event
                self._data, self._event, self.last_id = [], b"", self._id
                self._unended, self._read = self._unended - self._read, 0
                if data and event in (b"", b"message"):
                    self.brought = True
                    yield data
                continue
            field, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if field == b"data":
                self._data.append(value)
            elif field == b"event":
                self._event = value
            elif field == b"id" and b"\0" not in value:
                self._id = value.decode("utf-8", "replace")
            elif field == b"retry" and value.isdigit() and len(value) < 10:
                self.retry_s = int(value) / 1000
        if self._unended > self._limit:
            raise HttpFault(Broke.CONTENT, f"an event has more than max_message_bytes ({self._limit})")

    def _with_plain_line_ends(self, piece: bytes) -> bytes:
        """A line ends with a line feed, a carriage return, or both, of which a piece may have only the first."""
        if self._after_return and piece[:1] == b"\n":
            piece = piece[1:]
            self._after_return = False
        if b"\r" not in piece:
            self._after_return = self._after_return and not piece
            return piece
        self._after_return = piece.endswith(b"\r")
        return piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
