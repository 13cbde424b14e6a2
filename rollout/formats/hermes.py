"""The hermes way of writing a completion as text: `<think>`, content, `<tool_call>` blocks.

Qwen, Hermes and many others use it. Unlike verl's `HermesToolParser`, which logs a broken call and drops it,
`read` returns every block: one that cannot be read comes back as a `Call` with a `problem` for the policy to read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from rollout.formats.blocks import BlockFormat
from rollout.formats.reading import Tools
from rollout.formats.values import decode_json
from rollout.types import Call, Parsed

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"

_SHAPE = 'write {"name": <tool name>, "arguments": <object>} between <tool_call> and </tool_call>'
_NAME = re.compile(r'"name"\s*:\s*"([^"\\]*)"')


def read(text: str) -> Parsed:
    """Split a completion into thinking, content and calls. Calls written inside the thinking are thoughts."""
    reading = HERMES.read(text, ())
    return Parsed(content=reading.content, thinking=reading.thinking, calls=reading.calls)


def call_from(value: object) -> Call:
    """A decoded tool call, checked for its shape."""
    fields = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    name, arguments = fields.get("name"), fields.get("arguments", {})
    if not isinstance(name, str):
        return Call(name="", problem=f'The tool call has no "name"; {_SHAPE}.')
    if isinstance(arguments, str) and (read := _object_in(arguments)) is not None:
        return Call(name=name, arguments=read, as_text=arguments)
    if not isinstance(arguments, dict):
        return Call(name=name, problem=f'"arguments" must be an object, not {type(arguments).__name__}; {_SHAPE}.')
    return Call(name=name, arguments=cast("dict[str, Any]", arguments))


def _object_in(text: str) -> dict[str, Any] | None:
    try:
        value = decode_json(text)
    except ValueError:
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def write(*, thinking: str = "", content: str = "", calls: Sequence[Call] = ()) -> str:
    """The completion's text, without the end-of-turn token."""
    blocks = [f"{THINK_OPEN}\n{thinking}\n{THINK_CLOSE}\n\n"] if thinking else []
    blocks += [content] if content else []
    for index, call in enumerate(calls):
        body = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
        blocks.append(("\n" if content or index else "") + f"{CALL_OPEN}\n{body}\n{CALL_CLOSE}")
    return "".join(blocks)


def _read_block(body: str, _: Tools) -> list[Call]:
    try:
        call = call_from(decode_json(body))
    except ValueError as error:
        named = _NAME.search(body)
        call = Call(name=named.group(1) if named else "")
        call = replace(call, problem=f"The tool call is not valid JSON ({error}); {_SHAPE}.")
    return [call]


HERMES = BlockFormat(
    name="hermes",
    think=(THINK_OPEN, THINK_CLOSE),
    call=(CALL_OPEN, CALL_CLOSE),
    read_block=_read_block,
    shape=_SHAPE,
    ends=("<|im_end|>", "<|endoftext|>"),
    closing=("<|im_end|>", "<|im_end|>"),
)
