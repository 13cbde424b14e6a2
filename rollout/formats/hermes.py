"""The hermes format, of Qwen, Hermes and many others: `<think>`, content, `<tool_call>` blocks with JSON.

Unlike verl's `HermesToolParser`, which logs a broken call and drops it, this one returns every block: an unreadable one
is a `Call` with a `problem` for the policy to read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, cast

from mcp_rollout.rollout.formats.format import BlockFormat, Tools, quoted
from mcp_rollout.rollout.formats.values import decode_arguments, decode_json
from mcp_rollout.rollout.types import Call

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"

_ARGUMENTS = ("arguments", "parameters")
"""The format's own key, and Llama's, which policies that have learnt both write; the first counts."""
_NAME = re.compile(r'"name"\s*:\s*"([^"\\]*)"')


def write(*, thinking: str = "", content: str = "", calls: Sequence[Call] = ()) -> str:
    """The completion's text, without the end-of-turn token; arguments with `as_text` are written as that text."""
    blocks = [f"{THINK_OPEN}\n{thinking}\n{THINK_CLOSE}\n\n"] if thinking else []
    blocks += [content] if content else []
    for index, call in enumerate(calls):
        arguments = json.dumps(call.arguments, ensure_ascii=False) if call.as_text is None else call.as_text
        body = f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": {arguments}}}'
        body = body.replace(CALL_CLOSE, CALL_CLOSE.replace("/", "\\/"))  # the same text in JSON
        blocks.append(("\n" if content or index else "") + f"{CALL_OPEN}\n{body}\n{CALL_CLOSE}")
    return "".join(blocks)


class _HermesFormat(BlockFormat):
    def read_block(self, body: str, tools: Tools) -> list[Call]:
        try:
            return [self._call(decode_json(body))]
        except ValueError as error:
            named = _NAME.search(body)
            return [self.unreadable(f"The tool call is not valid JSON ({error})", name=named.group(1) if named else "")]

    def _call(self, value: object) -> Call:
        fields = cast("dict[str, object]", value) if isinstance(value, dict) else {}
        name, written = fields.get("name"), [fields[key] for key in _ARGUMENTS if key in fields]
        if not isinstance(name, str):
            return self.unreadable('The tool call has no "name"')
        # An empty one beside the other is what a policy writes that mixes both spellings up.
        arguments = next(filter(None, written), written[0] if written else dict[str, object]())
        if not written and (others := sorted(fields.keys() - {"name", "id", "type"})):
            return self.unreadable(f'The tool call has no "arguments", but {quoted(", ".join(others))}', name=name)
        if isinstance(arguments, dict):
            return Call(name=name, arguments=cast("dict[str, Any]", arguments))
        if isinstance(arguments, str):
            try:
                return Call(name=name, arguments=decode_arguments(arguments), as_text=arguments)
            except ValueError:
                pass  # refused below as the string that it is
        return self.unreadable(f'"arguments" must be an object, not {type(arguments).__name__}', name=name)


HERMES = _HermesFormat(
    name="hermes",
    call_syntax='write {"name": <tool name>, "arguments": <object>} between <tool_call> and </tool_call>',
    end_tokens=("<|im_end|>", "<|endoftext|>"),
    truncated_end=("<|im_end|>", "<|im_end|>"),
    think=(THINK_OPEN, THINK_CLOSE),
    call=(CALL_OPEN, CALL_CLOSE),
)
