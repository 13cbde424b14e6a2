"""GLM's calls: the tool's name, then pairs of `<arg_key>` and `<arg_value>`."""

from __future__ import annotations

import re

from rollout.formats.blocks import quoted
from rollout.formats.reading import Tools
from rollout.formats.values import parameters, typed
from rollout.types import Call

SHAPE = "write <tool_call>NAME, then <arg_key>KEY</arg_key><arg_value>VALUE</arg_value> for each, then </tool_call>"
_PAIR = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)


def read_block(body: str, tools: Tools) -> list[Call]:
    """The one call of a block."""
    name, marker, rest = body.partition("<arg_key>")
    name, rest = name.strip(), marker + rest
    known, arguments = parameters(tools, name), dict[str, object]()
    if not name or "<" in name:
        return [Call(name="", problem=f"The tool call names no tool, but begins with {quoted(body)}; {SHAPE}.")]
    if left := _PAIR.sub("", rest).strip():
        return [Call(name=name, problem=f"{quoted(left)} is no argument; {SHAPE}.")]
    for pair in _PAIR.finditer(rest):
        key = pair.group(1).strip()
        if key in arguments:
            return [Call(name=name, problem=f"The argument {key!r} is given twice; {SHAPE}.")]
        arguments[key] = typed(pair.group(2), known.get(key))
    return [Call(name=name, arguments=arguments)]
