# pyright: basic
# pyarrow ships no types.
"""Column layout of archived traces: one row per trajectory, plain Arrow types, each text once.

pyarrow is imported where a schema is built: readers of journals need the names alone.

`docs/schemas/archive.txt` lists the columns; a test compares it with this module. The lists of what happened in a turn
(`generations`, `calls`, `user_replies`, `marks`, `server_requests`, `notifications`) have the turn's number in each
element, counted from 0; -1 is before the first turn or after the last. `message` is an index into `messages`, counted
from 0, where the element's text is.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any

FORMAT_VERSION = 4
"""Version of the layout, in the file's metadata."""
VERSION_KEY = b"mcp-rollout.traces"

Kind = str | list["Kind"] | dict[str, "Kind"]
"""A type: the name of pyarrow's function for it, a list of one type, or a struct's fields."""

_TEXT, _FLAG, _SMALL, _INT, _REAL = "string", "bool_", "int32", "int64", "float64"
_JSON = _TEXT
"""A JSON text, for values without a fixed type."""


def _structs(**fields: Kind) -> Kind:
    return [fields]


_SELECTABLE: dict[str, Kind] = {
    # Identity.
    "id": _TEXT,
    "environment": _TEXT,
    "task": _TEXT,
    "seed": _INT,
    "row": _INT,
    "sample": _INT,
    "step": _INT,  # null outside training
    "split": _TEXT,
    "validate": _FLAG,
    "attempt": _SMALL,
    "parent": _TEXT,
    "branched_at": _INT,
    "uid": _TEXT,
    "engine": _TEXT,
    "run": _TEXT,  # names the run record beside the file
    # Outcome.
    "reward": _REAL,
    "penalty": _REAL,
    "stop_reason": _TEXT,
    "failure": _TEXT,  # its code
    "error": _TEXT,  # its message
    "withdrawn": _FLAG,
    # Counts, and times: seconds, `began_at` since 1970.
    "turns": _SMALL,
    "tool_calls": _SMALL,
    "tool_errors": _SMALL,
    "prompt_tokens": _INT,  # of the opening prompt
    "response_tokens": _INT,  # after it, in the longest context
    "tokens": _INT,  # of all segments: prompt and response
    "sampled_tokens": _INT,  # for this trajectory: without those that a branch took over from its parent
    "loss_tokens": _INT,
    "control_text": _SMALL,  # spellings of control tokens in texts
    "began_at": _REAL,
    "elapsed_s": _REAL,
    "lease_wait_s": _REAL,
}
_CONTENT: dict[str, Kind] = {
    "reward_parts": _structs(name=_TEXT, value=_REAL),
    "reward_turns": [_REAL],
    "tools": [_TEXT],  # that the row selects; null for all
    "later_tools": [_TEXT],  # that the row refuses until a reply of the user names them
    "answer": _TEXT,
    "world_calls": _JSON,  # of the task: its `setup`, `check` and `verl`, and the calls made; null without any
    "strategy": _JSON,  # how the trajectory was rolled out; null for a chain
    "agent": _JSON,  # the environment's agent and its arguments; null for the built-in one
    "prompt_messages": _SMALL,  # number of the first messages that are the row's prompt; null where `prompt` has it
    "prompt": _JSON,
    "messages": _structs(
        role=_TEXT,
        content=_TEXT,
        blocks=_JSON,  # blocks before the text, such as images; null where the content is plain text
        turn=_SMALL,  # of an assistant's message: its tool calls are the `calls` of this turn
        call=_SMALL,  # of a tool's message: index into `calls`, which have its name and id
        more=_JSON,  # the message's other keys
    ),
    "generations": _structs(
        turn=_SMALL,
        message=_SMALL,
        content=_TEXT,  # null where the message has it
        thinking=_TEXT,
        finish_reason=_TEXT,
        sampled=_SMALL,
        generations=_SMALL,
        request_ids=[_TEXT],
        seeds=[_INT],
        trimmed=[_SMALL],
        weights_first=_INT,
        weights_last=_INT,
        attempts=_structs(tokens=_SMALL, weights_version=_INT, seed=_INT),
        began_at=_REAL,
        generate_s=_REAL,
        agent_message=_TEXT,  # what the environment's agent said to the policy after the turn
        more_requests=_SMALL,
        more_notifications=_SMALL,
    ),
    "calls": _structs(
        turn=_SMALL,
        name=_TEXT,
        arguments=_JSON,
        server=_TEXT,
        id=_TEXT,
        is_error=_FLAG,
        fault=_TEXT,
        reward=_REAL,
        began_at=_REAL,
        elapsed_s=_REAL,
        wait_s=_REAL,
        server_s=_REAL,  # as the server says itself
        resends=_SMALL,
        sent_bytes=_INT,
        received_bytes=_INT,
        message=_SMALL,
        text=_TEXT,  # the whole result; null where the message has exactly this
        shown=_TEXT,  # what the policy read, where no message has it
        is_cut=_FLAG,  # whether the policy read another text than the result
        cut_tokens=_INT,
        coerced=_JSON,
        structured=_JSON,
        state=_TEXT,
        volatile=[_TEXT],  # dotted paths of fields that differ each time, as the server says
        blocks=_structs(kind=_TEXT, mime_type=_TEXT, uri=_TEXT, size=_INT, sha256=_TEXT),
    ),
    "user_replies": _structs(
        turn=_SMALL,
        seq=_SMALL,
        message=_SMALL,
        text=_TEXT,  # null where the message has it
        done=_FLAG,
        reward=_REAL,
        elapsed_s=_REAL,
        state=_TEXT,
    ),
    "marks": _structs(turn=_SMALL, kind=_TEXT, detail=_TEXT, action=_TEXT),
    "server_requests": _structs(
        turn=_SMALL,
        server=_TEXT,
        tool=_TEXT,
        kind=_TEXT,
        asked=_JSON,
        answer=_JSON,
        refused=_TEXT,
        elapsed_s=_REAL,
    ),
    "notifications": _structs(
        turn=_SMALL, server=_TEXT, tool=_TEXT, kind=_TEXT, text=_TEXT, level=_TEXT, progress=_REAL, total=_REAL
    ),
    "more_requests": _SMALL,
    "more_notifications": _SMALL,
    "has_logprobs": _FLAG,
    "segments": _structs(  # in order; one training sample each, if anything in it was sampled
        prompt_ids=[_SMALL],
        response_ids=[_SMALL],
        loss_mask=["int8"],  # [len(response_ids)]
        logprobs=["float32"],  # of the sampled tokens, which are those of spans `thinking` and `completion`
        images=_SMALL,
        spans=_structs(kind=_TEXT, turn=_SMALL, start=_SMALL, end=_SMALL),  # [start, end) in response_ids
    ),
}

LATER = frozenset({"world_calls"})
"""Columns that archives of this layout may lack, since they were added to it."""
SELECTABLE = list(_SELECTABLE)
"""Columns without lists, which the index has as well."""
ELEMENTS: dict[str, list[str]] = {
    name: list(kind[0]) for name, kind in _CONTENT.items() if isinstance(kind, list) and isinstance(kind[0], dict)
}
"""The fields of each column's elements."""
ORIGIN = ("row", "sample", "split", "attempt", "parent", "branched_at", "uid", "engine")
"""Columns that are fields of the origin as they are."""
LISTS_OF_NUMBERS = ("prompt_ids", "response_ids", "loss_mask", "logprobs")
"""The long lists of a segment."""


@cache
def schema() -> Any:
    """The layout as a `pyarrow.Schema`."""
    import pyarrow as pa

    def arrow(kind: Kind) -> Any:
        if isinstance(kind, str):
            return getattr(pa, kind)()
        if isinstance(kind, list):
            return pa.list_(arrow(kind[0]))
        return pa.struct([(name, arrow(each)) for name, each in kind.items()])

    columns = [(name, arrow(kind)) for name, kind in (_SELECTABLE | _CONTENT).items()]
    return pa.schema(columns, metadata={VERSION_KEY: str(FORMAT_VERSION).encode()})


@cache
def as_they_are(column: str, record: type[Any]) -> list[str]:
    """The fields that a column's elements have from a dataclass of records, without a change unless said otherwise."""
    return [each.name for each in fields(record) if each.name in ELEMENTS[column]]


def encodings() -> dict[str, Any]:
    """Arguments for `pyarrow.parquet.ParquetWriter`.

    Ids are stored as plain integers: zstd finds repeated prompts and results in them, which dictionary codes of 11 or
    17 bits hide. The bytes of log-probabilities are split by significance, since only sign and exponent repeat.
    """
    ids = {f"segments.list.element.{name}.list.element": "PLAIN" for name in LISTS_OF_NUMBERS[:3]}
    logprobs = {"segments.list.element.logprobs.list.element": "BYTE_STREAM_SPLIT"}
    return {
        "compression": "zstd",
        "compression_level": 9,
        "use_dictionary": [path for path in _leaves() if path not in ids and path not in logprobs],
        "column_encoding": ids | logprobs,
        "data_page_size": 8 * 2**20,  # zstd finds repetitions within a page
    }


def layout() -> str:
    """The columns with their types, a line each."""
    return "".join(f"{name}: {kind}\n" for name, kind in zip(schema().names, schema().types, strict=True))


def _leaves() -> list[str]:
    found: list[str] = []

    def add(path: str, kind: Kind) -> None:
        if isinstance(kind, list):
            add(f"{path}.list.element", kind[0])
        elif isinstance(kind, dict):
            for name, each in kind.items():
                add(f"{path}.{name}", each)
        else:
            found.append(path)

    for name, kind in (_SELECTABLE | _CONTENT).items():
        add(name, kind)
    return found
