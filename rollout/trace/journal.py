"""Lines of a journal: a trace as one line of JSON, and back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from typing import Any

import orjson
import pydantic_core
from pydantic import BaseModel, TypeAdapter, ValidationError

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.trace.record import SCHEMA_VERSION, Trace
from mcp_rollout.rollout.trace.segment import Segment, packed

_RECORD = TypeAdapter(Trace)
_RECORDED = [each.name for each in fields(Trace) if each.init and each.metadata.get("recorded", True)]
_SEGMENT = [each.name for each in fields(Segment)]
_ELEMENTS = ("messages", "turns", "earlier")
_LISTS = ("prompt_ids", "response_ids", "loss_mask", "logprobs")
_PIECE = 2**16
"""Numbers that are written at a time: about 1 ms."""
_LARGE_TEXT = 2**20
"""Characters of messages that are written in a few milliseconds."""


class NotARecord(ConfigError):
    """A line of a journal is not a trace: half written, or of another program."""


def to_json(trace: Trace) -> bytes:
    """The record as one line of JSON."""
    found = _object(trace)
    for segment in (found, *found["earlier"]):
        segment["logprobs"] = packed(segment["logprobs"])
    return _dumped(found)


def readable(trace: Trace) -> bytes:
    """As `to_json`, with log-probabilities as numbers; no record."""
    return _dumped(_object(trace))


def is_large(trace: Trace) -> bool:
    """Whether `to_json` would hold an event loop for some milliseconds; then `pieces` lets it run in between."""
    segments = (*trace.earlier, trace)
    numbers = sum(len(segment.prompt_ids) + 2 * len(segment.response_ids) for segment in segments)
    return numbers > _PIECE or sum(len(message.get("content") or ()) for message in trace.messages) > _LARGE_TEXT


def pieces(trace: Trace) -> Iterator[bytes]:
    """The parts of `to_json` one after the other; each takes a few milliseconds, but for a text of many megabytes."""
    return _parts(_object(trace))


def _parts(fields: dict[str, Any]) -> Iterator[bytes]:
    """The JSON of an object with the fields of a segment; its long lists are divided."""
    begin = b"{"
    for name, value in fields.items():
        yield begin + f'"{name}":'.encode()
        begin = b","
        length = _PIECE if name in _LISTS else 1
        if (name not in _LISTS and name not in _ELEMENTS) or (len(value) <= length and name != "earlier"):
            yield _dumped(packed(value) if name == "logprobs" else value)
            continue
        yield b"["
        for start in range(0, len(value), length):
            yield b"," if start else b""
            if name == "earlier":
                yield from _parts(value[start])
            else:
                part = value[start : start + length]
                yield _dumped(packed(part) if name == "logprobs" else part)[1:-1]
        yield b"]"
    yield b"}"


def _object(trace: Trace) -> dict[str, Any]:
    return {name: getattr(trace, name) for name in _RECORDED} | {
        "earlier": [{name: getattr(segment, name) for name in _SEGMENT} for segment in trace.earlier]
    }


def _dumped(value: Any) -> bytes:
    """JSON as pydantic writes it. orjson is several times as fast, and refuses integers of more than 64 bits."""
    try:
        return orjson.dumps(value, default=_fields_of, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        pass
    try:
        return pydantic_core.to_json(value, by_alias=True)
    except pydantic_core.PydanticSerializationError:
        # Half of a surrogate pair, which is not text: a server in this process, or an agent, can have made it.
        plain = pydantic_core.to_jsonable_python(value, by_alias=True)
        return json.dumps(plain, ensure_ascii=False).encode(errors="replace")


def _fields_of(model: Any) -> dict[str, Any]:
    """The fields of a pydantic model under their names in JSON; orjson knows dataclasses itself."""
    if not isinstance(model, BaseModel):
        raise TypeError
    values = model.__dict__
    return {alias: values[name] for name, alias in _aliases(type(model))}


@cache
def _aliases(model: type[BaseModel]) -> list[tuple[str, str]]:
    return [(name, field.alias or name) for name, field in model.model_fields.items() if not field.exclude]


def from_json(line: bytes | str, *, where: str = "record") -> Trace:
    """Read a record, the inverse of `to_json`.

    Args:
        line: the record.
        where: file and line, for errors.

    Raises:
        NotARecord: the line is not a trace record.
        ConfigError: the record is of another version.
    """
    try:
        return _checked(_RECORD.validate_json(line), where)
    except ValidationError as error:
        raise _not_a_record(error, where) from error


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a record."""
    return _RECORD.json_schema(by_alias=True, mode="serialization")


def _checked(trace: Trace, where: str) -> Trace:
    if trace.schema_version != SCHEMA_VERSION:
        problem = f"trace schema {trace.schema_version}, this program reads {SCHEMA_VERSION}"
        raise ConfigError(problem, file=where)
    for name, value in trace.origin:
        if isinstance(value, int) and abs(value) >= 2**63:  # the index cannot hold it
            raise NotARecord("not a trace record: has a number of more than 64 bits", file=where, key=f"origin.{name}")
    return trace


def _not_a_record(error: ValidationError, where: str) -> NotARecord:
    fault = error.errors(include_url=False)[0]
    key = ".".join(map(str, fault["loc"])) or None
    return NotARecord(f"not a trace record: {fault['msg']}", file=where, key=key)
