"""The hermes way of writing a completion as text: `<think>`, content, `<tool_call>` blocks.

Qwen, Hermes and many others use it. Unlike verl's `HermesToolParser`, which logs a broken call and drops it,
`read` returns every block: one that cannot be read comes back as a `Call` with a `problem` for the policy to read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, cast

from rollout.types import Call, Parsed

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"

_CALL = re.compile(rf"{CALL_OPEN}(.*?)(?:{CALL_CLOSE}|\Z)", re.DOTALL)
_SHAPE = 'write {"name": <tool name>, "arguments": <object>} between <tool_call> and </tool_call>'


def split_thinking(text: str) -> tuple[str, str]:
    """(thinking, the rest). An opened thought that is never closed is thinking to its end.

    Templates that put `<think>` into the generation prompt leave only the closing marker in the completion.
    """
    head, closed, rest = text.partition(THINK_CLOSE)
    if closed:
        return head.removeprefix(THINK_OPEN).replace(THINK_OPEN, "", 1).strip("\n"), rest
    before, opened, thought = text.partition(THINK_OPEN)
    return (thought.strip("\n"), before) if opened else ("", text)


def read(text: str, *, thinking_tokens: int = 0) -> Parsed:
    """Split a completion into thinking, content and calls. Calls written inside the thinking are thoughts."""
    thinking, rest = split_thinking(text)
    calls = tuple(_read_call(match) for match in _CALL.finditer(rest))
    content = _CALL.sub("", rest).strip()
    return Parsed(content=content, thinking=thinking, thinking_tokens=thinking_tokens, calls=calls)


def _read_call(match: re.Match[str]) -> Call:
    if not match.group(0).endswith(CALL_CLOSE):
        return Call(name="", problem=f"The tool call has no {CALL_CLOSE}; {_SHAPE}.")
    try:
        value: object = json.loads(match.group(1))
    except json.JSONDecodeError as error:
        return Call(name="", problem=f"The tool call is not valid JSON ({error.msg} at {error.pos}); {_SHAPE}.")
    return call_from(value)


def call_from(value: object) -> Call:
    """A decoded tool call, checked for its shape."""
    fields = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    name, arguments = fields.get("name"), fields.get("arguments", {})
    if not isinstance(name, str):
        return Call(name="", problem=f'The tool call has no "name"; {_SHAPE}.')
    if not isinstance(arguments, dict):
        return Call(name=name, problem=f'"arguments" must be an object, not {type(arguments).__name__}; {_SHAPE}.')
    return Call(name=name, arguments=cast("dict[str, Any]", arguments))


def write(*, thinking: str = "", content: str = "", calls: Sequence[Call] = ()) -> str:
    """The completion's text, without the end-of-turn token."""
    blocks = [f"{THINK_OPEN}\n{thinking}\n{THINK_CLOSE}\n\n"] if thinking else []
    blocks += [content] if content else []
    for index, call in enumerate(calls):
        body = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
        blocks.append(("\n" if content or index else "") + f"{CALL_OPEN}\n{body}\n{CALL_CLOSE}")
    return "".join(blocks)
