"""An HTTP/1.1 answer, parsed from the pieces in which it arrives (RFC 9112). No I/O."""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from gateway.transport.delivery import Broke

_MOST_HEAD_BYTES = 64 << 10
_MOST_INFORMATIONAL = 16
"""Heads of an answer before its own, such as 103 Early Hints."""
_MOST_LINE_BYTES = 4 << 10
"""Of the line before a chunk, or of a trailer."""
_REPEATED_BYTES = 1024
"""Longest head that is remembered: a server repeats its own for as long as its `date` is the same."""
_STATUS = re.compile(rb"HTTP/1\.([01]) (\d{3})(?: (.*))?")
_BARE_END = re.compile(rb"\n\r?\n")
"""The end of a head with line ends that RFC 9112 lets a recipient accept."""
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;.*)?")
_DATA_OVER, _SIZE_NEXT, _TRAILERS = -1, -2, -3
"""In place of the bytes that a chunk has left: what comes next is its line end, a size, or the end of the body."""


class _Stage(Enum):
    """What is read next; a body is framed in one of three ways."""

    HEAD = 0
    LENGTH = 1
    CHUNKS = 2
    UNTIL_CLOSE = 3


class HttpFault(Exception):
    """How an exchange broke; the message contains no secrets."""

    def __init__(self, broke: Broke, reason: str) -> None:
        super().__init__(reason)
        self.broke, self.reason = broke, reason


class HttpAnswer:
    """Status and headers once `status` is not 0, then the body as far as it has arrived.

    Args:
        limit: Bytes of the body. An answer that announces more is refused before any of them is read.
    """

    __slots__ = (
        "_head",
        "_informational",
        "_left",
        "_limit",
        "_rest",
        "_size",
        "_stage",
        "body",
        "complete",
        "reusable",
        "status",
    )

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.status = 0
        self._head = _NO_HEAD
        self._informational = 0
        self.body: bytearray = bytearray()
        """What has arrived and was not taken."""
        self.complete = False
        self.reusable = False
        """Whether the connection can carry another request once this answer is complete."""
        self._stage = _Stage.HEAD
        self._rest: bytes = b""
        self._size = 0
        """Bytes of the body so far, taken ones included."""
        self._left = 0

    @property
    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """Names in lower case."""
        return self._head.headers

    def header(self, name: bytes) -> bytes:
        """The first header of this name, which is given in lower case; empty where there is none."""
        return _header(self._head.headers, name)

    @property
    def is_document(self) -> bool:
        return self._head.content_type.startswith(b"application/json")

    @property
    def is_event_stream(self) -> bool:
        return self._head.content_type.startswith(b"text/event-stream")

    @property
    def encoding(self) -> str:
        """How the body is encoded, although `identity` was requested; empty where it travels as it is."""
        return self._head.encoding

    @property
    def status_line(self) -> str:
        return f"HTTP {self.status} {self._head.reason}".rstrip()

    def take(self, most: int | None = None) -> bytes:
        """The bytes of the body that have arrived since the last call, up to a number of them."""
        taken = bytes(self.body if most is None else self.body[:most])
        del self.body[: len(taken)]
        return taken

    def feed(self, data: bytes) -> None:
        """Parse the next bytes of the connection. Raises `HttpFault`."""
        while data:
            if self.complete:
                raise HttpFault(Broke.LINE, "RemoteProtocolError: bytes after the end of the answer")
            match self._stage:
                case _Stage.HEAD:
                    data = self._read_head(data)
                case _Stage.LENGTH:
                    data = self._read_length(data)
                case _Stage.CHUNKS:
                    data = self._read_chunks(data)
                case _Stage.UNTIL_CLOSE:
                    data = self._read_until_close(data)

    def end(self) -> None:
        """The connection has ended. Raises `HttpFault` where the answer has not."""
        if self._stage is _Stage.UNTIL_CLOSE:
            self.complete = True
        elif not self.complete:
            raise HttpFault(Broke.LINE, "RemoteProtocolError: the server disconnected before the end of its answer")

    def _read_head(self, data: bytes) -> bytes:
        data = self._rest + data
        end, gap = data.find(b"\r\n\r\n"), 4
        if not 0 <= end <= _MOST_HEAD_BYTES and (bare := _BARE_END.search(data)):
            end, gap = bare.start(), len(bare.group())
        if max(end, len(data) if end < 0 else 0) > _MOST_HEAD_BYTES:
            raise _malformed(f"headers of more than {_MOST_HEAD_BYTES} bytes")
        if end < 0:
            self._rest = data
            return b""
        self._rest = b""
        try:
            self._parse_head(data[:end])
        except HttpFault:
            # The end that was found may be the body's, behind a head with the other line ends. Looked for only here:
            # hardly a server has them.
            bare = _BARE_END.search(data, 0, end + 2)
            if bare is None:
                raise
            end, gap = bare.start(), len(bare.group())
            self._parse_head(data[:end])
        return data[end + gap :]

    def _parse_head(self, data: bytes) -> None:
        head = _read_repeated(data) if len(data) <= _REPEATED_BYTES else _read(data)
        if head is None:  # informational: another head follows
            self._informational += 1
            if self._informational > _MOST_INFORMATIONAL:
                raise _malformed(f"more than {_MOST_INFORMATIONAL} informational heads")
            return
        self._head, self.status, self.reusable = head, head.status, head.reusable
        self._stage, self._left = head.stage, head.left
        if head.stage is _Stage.LENGTH:
            if head.left > self._limit:
                raise self._too_long()
            self.complete = head.left == 0

    def _read_length(self, data: bytes) -> bytes:
        self.body += data[: self._left]
        data, self._left = data[self._left :], self._left - min(self._left, len(data))
        self.complete = self._left == 0
        return data

    def _read_until_close(self, data: bytes) -> bytes:
        self._count(len(data))
        self.body += data
        return b""

    def _read_chunks(self, data: bytes) -> bytes:
        data, self._rest, at = self._rest + data, b"", 0
        while at < len(data) and not self.complete:
            if self._left > 0:
                part = data[at : at + self._left]
                self.body += part
                self._left, at = self._left - len(part) or _DATA_OVER, at + len(part)
                continue
            end = data.find(b"\n", at)
            line = data[at:end] if end >= 0 else data[at:]
            if len(line) > _MOST_LINE_BYTES:
                raise _malformed("a chunk without a size")
            if end < 0:
                self._rest = line
                return b""
            self._between_chunks(line.rstrip(b"\r"))
            at = end + 1
        return data[at:]

    def _between_chunks(self, line: bytes) -> None:
        if self._left == _TRAILERS:
            self._count(len(line))
            self.complete = not line
        elif self._left == _DATA_OVER:
            if line:
                raise _malformed("a chunk of another size than it says")
            self._left = _SIZE_NEXT
        else:
            match = _SIZE.fullmatch(line)
            if match is None:
                raise _malformed("a chunk without a size")
            size = int(match[1], 16)
            self._count(size)
            self._left = size or _TRAILERS

    def _count(self, size: int) -> None:
        self._size += size
        if self._size > self._limit:
            raise self._too_long()

    def _too_long(self) -> HttpFault:
        return HttpFault(Broke.CONTENT, f"the answer has more than max_message_bytes ({self._limit})")


class _Head(NamedTuple):
    """What a head says, all that is asked of it for each answer included."""

    status: int
    reason: str
    headers: tuple[tuple[bytes, bytes], ...]
    content_type: bytes
    """In lower case."""
    encoding: str
    reusable: bool
    stage: _Stage
    """How the body is framed."""
    left: int
    """`HttpAnswer._left` where the body begins."""


_NO_HEAD = _Head(0, "", (), b"", "", False, _Stage.HEAD, 0)


def _read(head: bytes) -> _Head | None:
    """A head; None for an informational one. Raises `HttpFault`."""
    first, *lines = [line.rstrip(b"\r") for line in head.split(b"\n")]
    match = _STATUS.fullmatch(first)
    if match is None:
        raise _malformed("no HTTP/1.1 status line")
    status = int(match[2])
    if status < 200:
        if status == 101:
            raise _malformed("a change of protocols that was not asked for")
        if b"" in lines:
            raise _malformed("two heads in one")
        return None
    found: list[tuple[bytes, bytes]] = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not _NAME.fullmatch(name):
            raise _malformed("a header that is none")
        found.append((name.lower(), value.strip(b" \t")))
    headers = tuple(found)
    stage, left, framed = _framing(status, headers)
    kept = match[1] == b"1" and b"close" not in _header(headers, b"connection").lower()
    encoding = _header(headers, b"content-encoding")
    return _Head(
        status=status,
        reason=(match[3] or b"")[:80].decode("latin-1").strip(),
        headers=headers,
        content_type=_header(headers, b"content-type").lower(),
        encoding="" if encoding in (b"", b"identity") else encoding[:40].decode("latin-1"),
        reusable=kept and framed,
        stage=stage,
        left=left,
    )


def _framing(status: int, headers: tuple[tuple[bytes, bytes], ...]) -> tuple[_Stage, int, bool]:
    """How a body is framed, what is left of it, and whether its end is certain (RFC 9112, section 6.3)."""
    lengths = {part.strip() for name, value in headers if name == b"content-length" for part in value.split(b",")}
    codings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
    if status in (204, 304):
        return _Stage.LENGTH, 0, True
    if codings:
        if codings != [b"chunked"]:
            raise _malformed("a transfer encoding that was not asked for")
        # A length beside it may be an attempt to make two parties disagree about where the answer ends.
        return _Stage.CHUNKS, _SIZE_NEXT, not lengths
    if lengths:
        length = lengths.pop()
        if lengths or not length.isdigit() or len(length) > 18:
            raise _malformed("a content length that is none")
        return _Stage.LENGTH, int(length), True
    return _Stage.UNTIL_CLOSE, 0, False


def _header(headers: tuple[tuple[bytes, bytes], ...], name: bytes) -> bytes:
    for found, value in headers:
        if found == name:
            return value
    return b""


_read_repeated = lru_cache(maxsize=64)(_read)


def _malformed(what: str) -> HttpFault:
    return HttpFault(Broke.LINE, f"RemoteProtocolError: {what}")
