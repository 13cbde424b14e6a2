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


def split_thinking(text: str, *, opened: bool = False) -> tuple[str, str]:
    """(thinking, the rest). An opened thought that is never closed is thinking to its end.

    Args:
        opened: whether the template put `<think>` into the generation prompt, so that only the closing marker is here.
    """
    head, closed, rest = text.partition(THINK_CLOSE)
    if closed:
        return head.removeprefix(THINK_OPEN).replace(THINK_OPEN, "", 1).strip("\n"), rest
    if opened:
        return text.strip("\n"), ""
    before, marker, thought = text.partition(THINK_OPEN)
    return (thought.strip("\n"), before) if marker else ("", text)


def read(text: str, *, thinking_tokens: int = 0, opened: bool = False) -> Parsed:
    """Split a completion into thinking, content and calls. Calls written inside the thinking are thoughts."""
    thinking, rest = split_thinking(text, opened=opened)
    calls = tuple(_read_call(match) for match in _CALL.finditer(rest))
    content = _CALL.sub("", rest).strip()
    return Parsed(content=content, thinking=thinking, thinking_tokens=thinking_tokens, calls=calls)


def _read_call(match: re.Match[str]) -> Call:
    if not match.group(0).endswith(CALL_CLOSE):
        return Call(name="", problem=f"The tool call has no {CALL_CLOSE}; {_SHAPE}.")
    try:
        return call_from(decode_json(match.group(1)))
    except ValueError as error:
        return Call(name="", problem=f"The tool call is not valid JSON ({error}); {_SHAPE}.")


def decode_json(text: str) -> object:
    """`json.loads` for text that a policy wrote, which may be anything.

    Raises:
        ValueError: not JSON, nested too deeply, a number of thousands of digits, or half of a surrogate pair.
    """
    try:
        value: object = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at {error.pos}") from error
    except UnicodeEncodeError as error:
        raise ValueError("half of a surrogate pair") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return value


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
