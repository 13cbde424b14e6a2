"""Lines of a journal: a trace as one line of JSON, and back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from gateway.errors import ConfigError
from rollout.trace.record import SCHEMA_VERSION, Trace, Turn
from rollout.trace.segment import Segment

JOURNAL_SUFFIX = ".jsonl"
_READ_VERSIONS = range(1, SCHEMA_VERSION + 1)
_RECORD = TypeAdapter(Trace)
_ELEMENTS: dict[str, TypeAdapter[Any]] = {"messages": TypeAdapter(dict[str, Any]), "turns": TypeAdapter(Turn)}
_SEGMENT = TypeAdapter(Segment)
_LISTS = ("prompt_ids", "response_ids", "loss_mask", "logprobs")
_PIECE = 2**16
"""Numbers that are written at a time: about 1 ms."""
_LARGE_TEXT = 2**20
"""Characters of messages that are written in a few milliseconds."""


class NotARecord(ConfigError):
    """A line of a journal is not a trace: half written, or of another program."""


def to_json(trace: Trace) -> bytes:
    """The record as one line of JSON."""
    return b"".join(pieces(trace))


def is_large(trace: Trace) -> bool:
    """Whether `to_json` would hold an event loop for some milliseconds; then `pieces` lets it run in between."""
    segments = (*trace.earlier, trace)
    numbers = sum(len(segment.prompt_ids) + 2 * len(segment.response_ids) for segment in segments)
    return numbers > _PIECE or sum(len(message.get("content") or ()) for message in trace.messages) > _LARGE_TEXT


def pieces(trace: Trace) -> Iterator[bytes]:
    """The parts of `to_json` one after the other; each takes a few milliseconds, but for a text of many megabytes."""
    rest = _RECORD.dump_json(trace, by_alias=True, exclude={"earlier", *_ELEMENTS, *_LISTS})
    yield from _with_lists(rest, trace)
    for name, adapter in _ELEMENTS.items():
        yield f',"{name}":['.encode()
        for number, element in enumerate(getattr(trace, name)):
            yield (b"," if number else b"") + _dumped(element, adapter)
        yield b"]"
    yield b',"earlier":['
    for number, segment in enumerate(trace.earlier):
        yield b"," if number else b""
        yield from _with_lists(_SEGMENT.dump_json(segment, exclude=set(_LISTS)), segment)
        yield b"}"
    yield b"]}"


def _dumped(value: Any, adapter: TypeAdapter[Any]) -> bytes:
    """JSON as pydantic writes it. orjson is several times as fast, and refuses integers of more than 64 bits."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return adapter.dump_json(value, by_alias=True)


def _with_lists(rest: bytes, segment: Segment) -> Iterator[bytes]:
    """An object and the segment's lists, without the closing brace."""
    yield rest[:-1]
    for name in _LISTS:
        values: list[Any] = getattr(segment, name)
        yield f',"{name}":['.encode()
        for start in range(0, len(values), _PIECE):
            part = values if len(values) <= _PIECE else values[start : start + _PIECE]
            numbers = orjson.dumps(part, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
            yield b"," + numbers if start else numbers
        yield b"]"


def from_json(line: bytes | str, *, where: str = "record") -> Trace:
    """Read a record, the inverse of `to_json`; records of earlier versions become records of this one.

    Args:
        line: the record.
        where: file and line, for errors.

    Raises:
        NotARecord: the line is not a trace record.
        ConfigError: the record is of a later version.
    """
    try:
        return _checked(_RECORD.validate_json(line), where)
    except ValidationError as error:
        raise _not_a_record(error, where) from error


def from_record(record: dict[str, Any], *, where: str = "record") -> Trace:
    """Read a record that was parsed already; raises as `from_json`."""
    try:
        return _checked(_RECORD.validate_python(record), where)
    except ValidationError as error:
        raise _not_a_record(error, where) from error


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a record."""
    return _RECORD.json_schema(by_alias=True, mode="serialization")


def lines_of(path: Path, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """The lines of a journal from a byte on, each with the position of its first byte.

    A last line without a newline is being written, or its writer was killed.
    """
    with path.open("rb") as file:
        position = file.seek(start)
        for line in file:
            yield position, line
            position += len(line)


def _checked(trace: Trace, where: str) -> Trace:
    if trace.schema_version not in _READ_VERSIONS:
        problem = f"trace schema {trace.schema_version}, this program reads up to {SCHEMA_VERSION}"
        raise ConfigError(problem, file=where)
    trace.schema_version = SCHEMA_VERSION
    return trace


def _not_a_record(error: ValidationError, where: str) -> NotARecord:
    fault = error.errors(include_url=False)[0]
    key = ".".join(map(str, fault["loc"])) or None
    return NotARecord(f"not a trace record: {fault['msg']}", file=where, key=key)
