# pyright: basic
# pyarrow ships no types.
"""Rows of an archive as records, in the form that the journal has them; the inverse of `archive_rows`."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from rollout.trace.columns import LISTS_OF_NUMBERS, ORIGIN, as_they_are
from rollout.trace.events import ToolEvent, UserEvent
from rollout.trace.record import SCHEMA_VERSION, Turn
from rollout.trace.segment import SpanKind

Row = dict[str, Any]
_SAMPLED = {kind for kind in SpanKind if kind.is_sampled}
_FORMATS: dict[str, Any] = {"int32": "i", "int8": "b", "float": "f"}


def records_of(batch: pa.RecordBatch) -> Iterator[Row]:
    """The records of a batch of rows, each as the JSON object that the journal had."""
    rows = batch.drop_columns(["segments"]).to_pylist()
    for row, segments in zip(rows, _segments(batch.column("segments")), strict=True):
        yield record_of(row, segments)


def record_of(row: Row, segments: list[Row]) -> Row:
    """One record from its row and its segments."""
    *earlier, last = segments
    by_turn = {name: _by_turn(row[name]) for name in ("calls", "user_replies", "marks", *_EVENTS)}
    texts = [message["content"] or "" for message in row["messages"]]
    turns = [
        _turn(generation, {name: found[generation["turn"]] for name, found in by_turn.items()}, texts)
        for generation in row["generations"]
    ]
    messages = [_message(message, row["calls"], by_turn["calls"]) for message in row["messages"]]
    count = row["prompt_messages"]
    world_calls = json.loads(row.get("world_calls") or "{}")
    made, checks = world_calls.pop("made", []), world_calls.pop("checks", [])
    return {
        "id": row["id"],
        "task": {
            "environment": row["environment"],
            "task": row["task"],
            "seed": row["seed"],
            "tools": row["tools"],
            "later_tools": row["later_tools"],
            "prompt": messages[:count] if count is not None else json.loads(row["prompt"]),
            "answer": row["answer"],
            **world_calls,
        },
        "setup": made,
        "checks": checks,
        "origin": {name: row[name] for name in (*ORIGIN, "validate")}
        | {"step": -1 if row["step"] is None else row["step"]},
        "agent": None if row["agent"] is None else json.loads(row["agent"]),
        "strategy": json.loads(row["strategy"] or "{}"),
        "control_text": row["control_text"],
        "run": row["run"],
        "messages": messages,
        "earlier": earlier,
        **last,
        "has_logprobs": row["has_logprobs"],
        "turns": turns,
        "stop_reason": row["stop_reason"],
        "failure": None if row["failure"] is None else {"kind": row["failure"], "message": row["error"]},
        "reward": _reward(row),
        "server_events": _events(
            {name: by_turn[name][-1] for name in _EVENTS}, row["more_requests"], row["more_notifications"]
        ),
        "began_at": row["began_at"],
        "lease_wait_s": row["lease_wait_s"],
        "elapsed_s": row["elapsed_s"],
        "schema_version": SCHEMA_VERSION,
    }


_EVENTS = ("server_requests", "notifications")


def _turn(generation: Row, own: dict[str, list[Row]], texts: list[str]) -> Row:
    message = generation["message"]
    return _as_they_are("generations", Turn, generation) | {
        "content": generation["content"] if message is None else texts[message],
        "weights_version": (generation["weights_first"], generation["weights_last"]),
        "tools": [_tool_event(call, texts) for call in own["calls"]],
        "user": next((_user_event(reply, texts) for reply in own["user_replies"]), None),
        "server_events": _events(own, generation["more_requests"], generation["more_notifications"]),
        "marks": [_without_turn(mark) for mark in own["marks"]],
    }


def _tool_event(call: Row, texts: list[str]) -> Row:
    read = None if call["message"] is None else texts[call["message"]]
    replaced = {
        "arguments": json.loads(call["arguments"]),
        "text": read if call["text"] is None else call["text"],
        "shown": (read if call["shown"] is None else call["shown"]) if call["is_cut"] else None,
        "coerced": json.loads(call["coerced"] or "{}"),
        "structured": None if call["structured"] is None else json.loads(call["structured"]),
    }
    return _as_they_are("calls", ToolEvent, call) | replaced


def _user_event(reply: Row, texts: list[str]) -> Row:
    text = reply["text"] if reply["message"] is None else texts[reply["message"]]
    return _as_they_are("user_replies", UserEvent, reply) | {"message": text}


def _as_they_are(column: str, record: type[Any], element: Row) -> Row:
    return {name: element[name] for name in as_they_are(column, record)}


def _message(row: Row, calls: list[Row], by_turn: dict[int, list[Row]]) -> Row:
    message: Row = {} if row["role"] is None else {"role": row["role"]}
    if row["call"] is not None:
        call = calls[row["call"]]
        message |= {"name": call["name"]} | _id("tool_call_id", call)
    if row["blocks"] is not None:
        text = [] if row["content"] is None else [{"type": "text", "text": row["content"]}]
        message["content"] = json.loads(row["blocks"]) + text
    elif row["content"] is not None:
        message["content"] = row["content"]
    if row["turn"] is not None and by_turn[row["turn"]]:
        message["tool_calls"] = [
            {"type": "function", "function": {"name": call["name"], "arguments": json.loads(call["arguments"])}}
            | _id("id", call)
            for call in by_turn[row["turn"]]
        ]
    return message | json.loads(row["more"] or "{}")


def _id(key: str, call: Row) -> Row:
    return {} if call["id"] is None else {key: call["id"]}


def _reward(row: Row) -> Row | None:
    if row["reward"] is None:
        return None
    parts = {part["name"]: part["value"] for part in row["reward_parts"]}
    return {"score": row["reward"], "parts": parts, "turns": row["reward_turns"], "penalty": row["penalty"]}


def _events(own: dict[str, list[Row]], more_requests: int, more_notifications: int) -> Row:
    requests = [
        _without_turn(asked)
        | {
            "asked": json.loads(asked["asked"]),
            "answer": None if asked["answer"] is None else json.loads(asked["answer"]),
        }
        for asked in own["server_requests"]
    ]
    return {
        "requests": requests,
        "notifications": [_without_turn(note) for note in own["notifications"]],
        "more_requests": more_requests,
        "more_notifications": more_notifications,
    }


def _by_turn(rows: list[Row]) -> defaultdict[int, list[Row]]:
    found: defaultdict[int, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["turn"]].append(row)
    return found


def _without_turn(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "turn"}


def _segments(column: pa.ListArray) -> Iterator[list[Row]]:
    """The segments of each row; their long lists are read from Arrow's buffers, since `to_pylist` is slow for them."""
    structs = column.flatten()
    rows = pa.StructArray.from_arrays(
        [structs.field(name) for name in ("images", "spans")], names=["images", "spans"]
    ).to_pylist()
    lists = {name: _Lists(structs.field(name)) for name in LISTS_OF_NUMBERS}
    start = 0
    for count in column.value_lengths().to_pylist():
        found: list[Row] = []
        for index in range(start, start + count):
            segment = rows[index] | {name: values[index] for name, values in lists.items()}
            segment["logprobs"] = _spread(segment["logprobs"], segment["spans"], len(segment["response_ids"]))
            found.append(segment)
        yield found
        start += count


class _Lists:
    """The lists of an Arrow list array, by index."""

    def __init__(self, array: pa.ListArray) -> None:
        values = array.values
        width = _FORMATS[str(values.type)]
        self._offsets = array.offsets.to_pylist()
        buffer = values.buffers()[1]
        self._values = memoryview(b"" if buffer is None else buffer).cast("B").cast(width)[values.offset :]

    def __getitem__(self, index: int) -> list[Any]:
        return self._values[self._offsets[index] : self._offsets[index + 1]].tolist()


def _spread(logprobs: list[float], spans: list[Row], length: int) -> list[float]:
    """The log-probabilities by position of the response, 0.0 where nothing was sampled."""
    spread, used = [0.0] * length, 0
    for span in spans:
        if span["kind"] in _SAMPLED:
            count = span["end"] - span["start"]
            spread[span["start"] : span["end"]] = logprobs[used : used + count]
            used += count
    return spread
