"""The head of an HTTP/1.1 request, read strictly: anything unusual is left to the SDK's HTTP server."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

_REQUEST_LINE = re.compile(rb"([A-Z]+) (/[!-~]*) HTTP/1\.1")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[\t -~\x80-\xff]*")
_BARE_END = re.compile(rb"\n\r?\n")
_LENGTH = re.compile(rb"[0-9]{1,10}")
_UNUSUAL = frozenset({b"transfer-encoding", b"upgrade", b"expect"})
HEAD_BYTES = 1 << 15
"""Longest head that is read here."""
_REPEATED_BYTES = 2048
"""Longest head that is remembered: a client repeats its own with each call."""


@dataclass(frozen=True, slots=True)
class Head:
    """A request whose bounds are known: it ends `length` bytes after its head. Shared by requests with equal heads."""

    method: bytes
    target: bytes
    headers: dict[bytes, bytes]
    """Values by name in lower case."""
    repeated: bool
    """Whether a name occurs more than once; `headers` then holds the last value."""
    length: int
    """Length of the body in bytes."""


def read_head(data: bytes) -> Head | None:
    """Reads the lines before the empty line; None if the request is unusual or malformed.

    Unusual is what makes the end of the request depend on more than `Content-Length`, or what ends the connection.
    """
    return _read_repeated(data) if len(data) <= _REPEATED_BYTES else _read(data)


def ends_otherwise(data: bytearray) -> bool:
    """Whether a head ends in it with bare line feeds, which RFC 9112 lets a recipient accept."""
    return _BARE_END.search(data) is not None


def _read(data: bytes) -> Head | None:
    first, *lines = data.split(b"\r\n")
    request = _REQUEST_LINE.fullmatch(first)
    if request is None:
        return None
    headers: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or _NAME.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
            return None
        headers[name.lower()] = value.strip(b" \t")
    repeated = len(headers) < len(lines)
    if _UNUSUAL & headers.keys() or b"host" not in headers:
        return None
    if headers.get(b"connection", b"keep-alive").lower() != b"keep-alive":
        return None
    length = headers.get(b"content-length", b"0")
    if _LENGTH.fullmatch(length) is None or (repeated and _repeats_framing(lines)):
        return None
    return Head(request[1], request[2], headers, repeated, int(length))


_read_repeated = lru_cache(maxsize=256)(_read)


def _repeats_framing(lines: list[bytes]) -> bool:
    names = [line.partition(b":")[0].lower() for line in lines]
    return any(names.count(name) > 1 for name in (b"content-length", b"host", b"connection"))
