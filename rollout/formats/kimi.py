"""Kimi's calls: `functions.NAME:INDEX`, which is the call's id as well, and its arguments as JSON."""

from __future__ import annotations

import re
from typing import cast

from rollout.formats.blocks import quoted
from rollout.formats.reading import Tools
from rollout.formats.values import decode_json
from rollout.types import Call

SECTION = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
BEGIN, ARGUMENTS, END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
SHAPE = f"between {SECTION[0]} and {SECTION[1]}, write {BEGIN}functions.NAME:INDEX{ARGUMENTS}<an object>{END} for each"
_CALL = re.compile(f"{re.escape(BEGIN)}(.*?)(?:{re.escape(END)}|(?={re.escape(BEGIN)})|\\Z)", re.DOTALL)
_ID = re.compile(r"(?:functions\.)?(.*?)(?::\d+)?")


def read_block(body: str, tools: Tools) -> list[Call]:
    """All calls of a section."""
    calls = [_call(match) for match in _CALL.finditer(body)]
    rest = _CALL.sub("", body).strip()
    if rest or not calls:
        calls.append(Call(name="", problem=f"The section holds {quoted(rest) if rest else 'nothing'}; {SHAPE}."))
    return calls


def _call(match: re.Match[str]) -> Call:
    written, marker, text = match.group(1).partition(ARGUMENTS)
    identity = written.strip()
    named = _ID.fullmatch(identity)
    name = named.group(1) if named else identity
    if not marker:
        return Call(name="", problem=f"The tool call has no {ARGUMENTS}; {SHAPE}.")
    if not match.group(0).endswith(END):
        return Call(name=name, id=identity, problem=f"The tool call has no {END}; {SHAPE}.")
    try:
        arguments = decode_json(text)
    except ValueError as error:
        return Call(name=name, id=identity, problem=f"The arguments are not valid JSON ({error}); {SHAPE}.")
    if not isinstance(arguments, dict):
        kind = type(arguments).__name__
        return Call(name=name, id=identity, problem=f"The arguments must be an object, not {kind}; {SHAPE}.")
    return Call(name=name, id=identity, arguments=cast("dict[str, object]", arguments))
