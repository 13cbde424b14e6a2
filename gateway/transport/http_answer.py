"""HTTP/1.1 answers (RFC 9112), parsed by llhttp, and event streams in them, from the pieces that arrive. No I/O."""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping

from httptools import HttpParserCallbackError, HttpParserError, HttpResponseParser
from mcp_types import ErrorData

from mcp_rollout.gateway.transport.delivery import Broke
from mcp_rollout.mcp_wire.lines import LineSplitter, Oversize

_MOST_SPARE_BYTES = 64 << 10
"""Bytes in a row that are not of the body: of heads, of the lines between chunks, or of trailers."""
_MOST_INFORMATIONAL = 16
"""Heads of an answer before its own, such as 103 Early Hints."""


PIECE_BYTES = 128 << 10
"""Bytes of a stream that are read before other tasks get theirs: each may be a line."""
_DOCUMENT, _EVENT_STREAM = b"application/json", b"text/event-stream"


class HttpFault(Exception):
    """How an exchange broke; the message contains no secrets."""

    def __init__(self, broke: Broke, reason: str) -> None:
        super().__init__(reason)
        self.broke, self.reason = broke, reason


class HttpAnswer:
    """Status and headers once `status` is not 0, then the body as far as it has arrived.

    Args:
        limit: Bytes of the body. An answer that announces more is refused before any of them is read.
        lasting: Whether an event stream has no limit as a whole. Any other answer has.
    """

    def __init__(self, limit: int, *, lasting: bool = False) -> None:
        self._limit, self.lasting = limit, lasting
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        """Names in lower case."""
        self._first: dict[bytes, bytes] = {}
        self.encoding = ""
        """How the body is encoded, although `identity` was requested; empty where it travels as it is."""
        self.body: bytearray = bytearray()
        """What has arrived and was not taken."""
        self.complete = self.reusable = self._until_close = False
        self.is_document = self.is_event_stream = self.sets_cookies = False
        self._reason, self.via = b"", ""
        """What passed the answer on, or gave it in the server's place; empty for nothing."""
        self._informational = self._spare = self._size = 0
        self._parser: HttpResponseParser | None = None

    def header(self, name: bytes) -> bytes:
        """The first header of this name, which is given in lower case; empty if there is none."""
        return self._first.get(name, b"")

    @property
    def status_line(self) -> str:
        line = f"HTTP {self.status} {self._reason[:80].decode('latin-1').strip()}".rstrip()
        return f"{line} by way of {self.via}" if self.via else line

    def take(self, most: int | None = None) -> bytes:
        """The bytes of the body that have arrived since the last call, up to a number of them."""
        taken = bytes(self.body if most is None else self.body[:most])
        del self.body[: len(taken)]
        return taken

    def feed(self, data: bytes) -> None:
        """Parse the next bytes of the connection. Raises `HttpFault`."""
        if self.complete:
            raise _malformed("bytes after the end of the answer")
        parser = self._parser
        if parser is None:
            parser = self._parser = HttpResponseParser(self)
            # Line ends that RFC 9112 lets a recipient accept; a length beside chunks is judged in `_frame`.
            parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=True, lenient_chunked_length=True)
        size = self._size
        try:
            parser.feed_data(data)
        except HttpParserCallbackError as error:
            if isinstance(error.__context__, HttpFault):
                raise error.__context__ from None
            raise
        except HttpParserError as error:
            raise _malformed(str(error)) from None
        if self.complete:
            self._parser = None  # which refers to this object
        elif self._size > size:
            self._spare = 0
        else:
            self._spare += len(data)
            if self._spare > _MOST_SPARE_BYTES:
                raise _malformed(f"more than {_MOST_SPARE_BYTES} bytes that are not of the body")

    def end(self) -> None:
        """The connection has ended. Raises `HttpFault` if the answer has not."""
        self._parser = None
        if self._until_close:
            self.complete = True
        elif not self.complete:
            raise _malformed("the server disconnected before the end of its answer")

    def on_message_begin(self) -> None:
        """The parser's: a head follows."""
        if self.complete:
            raise _malformed("bytes after the end of the answer")
        self._reason = b""

    def on_status(self, reason: bytes) -> None:
        """The parser's: a piece of the reason phrase."""
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        """The parser's: a header, or a trailer."""
        if not self.status:
            self.headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        """The parser's: a head has ended."""
        assert self._parser is not None
        status = self._parser.get_status_code()
        if status < 200:
            if status == 101:
                raise _malformed("a change of protocols that was not asked for")
            self.headers.clear()
            self._informational += 1
            if self._informational > _MOST_INFORMATIONAL:
                raise _malformed(f"more than {_MOST_INFORMATIONAL} informational heads")
            return
        self.status, self.reusable = status, self._parser.should_keep_alive()
        first = self._first = dict(reversed(self.headers))
        kind = first.get(b"content-type", b"").lower()
        self.is_document, self.is_event_stream = kind.startswith(_DOCUMENT), kind.startswith(_EVENT_STREAM)
        self.sets_cookies = b"set-cookie" in first
        if (encoding := first.get(b"content-encoding", b"identity")) != b"identity":
            self.encoding = encoding[:40].decode("latin-1")
        if self.lasting and status == 200 and self.is_event_stream:
            self._limit = sys.maxsize
        self._frame(first)

    def _frame(self, first: Mapping[bytes, bytes]) -> None:
        """Judge how the body is framed (RFC 9112, section 6.3), as far as the parser leaves that open."""
        length = first.get(b"content-length", b"")
        if self.status in (204, 304):
            self.complete = True
        elif b"transfer-encoding" in first:
            if [value.lower() for name, value in self.headers if name == b"transfer-encoding"] != [b"chunked"]:
                raise _malformed("a transfer encoding that was not asked for")
            # A length beside it may be an attempt to make two parties disagree about where the answer ends.
            self.reusable = self.reusable and not length
        elif not length:
            self._until_close = True
        elif int(length) > self._limit:
            raise self._too_long()

    def on_body(self, data: bytes) -> None:
        """The parser's: a piece of the body."""
        if self.complete:
            raise _malformed("a body that its status excludes")
        self._size += len(data)
        if self._size > self._limit:
            raise self._too_long()
        self.body += data

    def on_message_complete(self) -> None:
        """The parser's: a message has ended, an informational one perhaps."""
        self.complete = self.status != 0

    def _too_long(self) -> HttpFault:
        return HttpFault(Broke.CONTENT, f"the answer has more than max_message_bytes ({self._limit})")


class StatusFault(HttpFault):
    """An HTTP status in place of an answer.

    Args:
        error: What its body says, where that is an error of JSON-RPC.
    """

    def __init__(
        self, answer: HttpAnswer, broke: Broke = Broke.LINE, reason: str = "", error: ErrorData | None = None
    ) -> None:
        super().__init__(broke, reason or answer.status_line)
        self.status, self.error = answer.status, error


def _malformed(what: str) -> HttpFault:
    return HttpFault(Broke.LINE, f"RemoteProtocolError: {what}")


def joined(data: bytes | bytearray, line: bytes) -> bytearray:
    """An event's data with one more line, in one piece: to join a million lines at its end would take long."""
    data = data if isinstance(data, bytearray) else bytearray(data)
    data += b"\n" + line
    return data


class EventStream:
    """One stream of server-sent events (WHATWG HTML, section 9.2).

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
        self._event = b""
        self._data: bytes | bytearray | None = None
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
                data, event = bytes(self._data or b""), self._event
                self._data, self._event, self.last_id = None, b"", self._id
                self._unended, self._read = self._unended - self._read, 0
                if data and event in (b"", b"message"):
                    self.brought = True
                    yield data
                continue
            field, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if field == b"data":
                self._data = value if self._data is None else joined(self._data, value)
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
