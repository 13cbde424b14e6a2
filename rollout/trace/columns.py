# pyright: basic
# pyarrow ships no types.
"""Traces as columns of a Parquet file, `trace export --parquet`: one row per trajectory, plain Arrow types.

The columns `SELECTABLE` come first; those below have the parts of a record as they are, and what has no fixed type as
JSON. `docs/schemas/columns.txt` lists them all; a test compares it with this module.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from mcp_rollout.gateway.private_files import private
from mcp_rollout.gateway.server_events import ServerEvents
from mcp_rollout.rollout.environment.sections import AgentConfig
from mcp_rollout.rollout.trace.entries import SELECTABLE, selectable
from mcp_rollout.rollout.trace.events import CheckEvent, ToolEvent
from mcp_rollout.rollout.trace.outcome import StrategyRecord
from mcp_rollout.rollout.trace.record import Trace, Turn
from mcp_rollout.rollout.trace.segment import Flag, Id, Logprobs, Segment
from mcp_rollout.rollout.types import Message

_GROUP_TOKENS = 500_000
"""Tokens of a row group, which are held as Python objects at a time: about 75 MB with their texts."""
_PARTS: dict[str, Any] = {
    "reward_turns": list[float],
    "row_task": BaseModel,
    "agent": AgentConfig,
    "strategy": StrategyRecord,
    "generations": list[Turn],
    "setup": list[ToolEvent],
    "checks": list[CheckEvent],
    "server_events": ServerEvents,
    "has_logprobs": bool,
    "segments": list[Segment],
}
"""Types of the columns that are parts of a record."""
_PLAIN = {str: pa.string(), bool: pa.bool_(), int: pa.int64(), float: pa.float64()}


def write_columns(path: Path, traces: Iterable[Trace]) -> int:
    """Write traces to a file that appears whole or not at all; returns their number.

    Raises:
        OSError: the file cannot be written.
    """
    partial = path.with_name(path.name + ".partial")
    rows = tokens = 0
    # The bytes of floats compress better apart: the exponents of log-probabilities are much alike.
    options: Any = {"use_byte_stream_split": ["segments.list.element.logprobs.list.element"]}
    # Ids as plain integers: zstd finds repeated prompts and results in them, which dictionary codes hide.
    options["use_dictionary"] = [column.name for column in schema() if pa.types.is_string(column.type)]
    with (
        open(partial, "wb", opener=private) as file,
        pq.ParquetWriter(file, schema(), compression="zstd", **options) as writer,
    ):
        group: list[dict[str, Any]] = []
        for trace in traces:
            group.append(_row(trace))
            rows, tokens = rows + 1, tokens + group[-1]["tokens"]
            if tokens >= _GROUP_TOKENS:
                writer.write_table(pa.Table.from_pylist(group, schema=schema()))
                group, tokens = [], 0
        writer.write_table(pa.Table.from_pylist(group, schema=schema()))
    partial.replace(path)
    return rows


@cache
def schema() -> pa.Schema:
    columns = [(name, getattr(pa, kind)()) for name, kind in SELECTABLE.items()]
    text = pa.string()
    columns += [
        ("reward_parts", pa.list_(pa.struct([("name", text), ("value", pa.float64())]))),
        # `more` has the other keys, and `blocks` those before the text, such as images.
        ("messages", pa.list_(pa.struct([("role", text), ("content", text), ("blocks", text), ("more", text)]))),
    ]
    return pa.schema([*columns, *((name, _type(kind)) for name, kind in _PARTS.items())])


def layout() -> str:
    """The columns with their types, a line each."""
    return "".join(f"{name}: {kind}\n" for name, kind in zip(schema().names, schema().types, strict=True))


def _type(kind: Any) -> pa.DataType:
    """The Arrow type of an annotation; JSON as text for what has no fixed type."""
    if kind in (Id, Flag):
        return pa.int32() if kind == Id else pa.int8()
    if kind == Logprobs:
        return pa.list_(pa.float32())
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _type(inner[0])
    if origin in (Union, UnionType):
        (one,) = (each for each in inner if each is not NoneType)
        return _type(one)
    if origin in (list, tuple):
        return pa.list_(_type(inner[0]))
    if is_dataclass(kind):
        hints = get_type_hints(kind, include_extras=True)
        return pa.struct([(each.name, _type(hints[each.name])) for each in fields(kind)])
    return next(
        (plain for base, plain in _PLAIN.items() if isinstance(kind, type) and issubclass(kind, base)), _PLAIN[str]
    )


def _value(value: Any) -> Any:
    """A value as its type's."""
    if is_dataclass(value):
        return {each.name: _value(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, list | tuple):
        return list(map(_value, value)) if value and not isinstance(value[0], int | float) else value
    if isinstance(value, BaseModel):
        return value.model_dump_json(by_alias=True)
    return _json(value) if isinstance(value, Mapping) else value


def _row(trace: Trace) -> dict[str, Any]:
    reward = trace.reward
    parts = {
        "reward_turns": reward and reward.turns,
        "row_task": trace.task,
        "generations": trace.turns,
        "segments": [*trace.earlier, Segment(**{each.name: getattr(trace, each.name) for each in fields(Segment)})],
    }
    return {
        **selectable(trace),
        "reward_parts": reward and [{"name": name, "value": value} for name, value in reward.parts.items()],
        "messages": list(map(_message, trace.messages)),
        **{name: _value(parts[name] if name in parts else getattr(trace, name)) for name in _PARTS},
    }


def _message(message: Message) -> dict[str, Any]:
    more = {key: value for key, value in message.items() if key not in ("role", "content")}
    content: Any = message.get("content")
    blocks = content if isinstance(content, list) else []
    texts = [block["text"] for block in blocks if isinstance(block, dict) and block.get("type") == "text"]
    return {
        "role": message.get("role"),
        "content": "\n".join(texts) if blocks else content,
        "blocks": _json(blocks) if blocks else None,
        "more": _json(more) if more else None,
    }


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
