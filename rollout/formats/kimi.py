"""Kimi's calls: `functions.NAME:INDEX`, which is the call's id as well, and its arguments as JSON."""

from __future__ import annotations

import re
from dataclasses import replace

from mcp_rollout.rollout.formats.format import BlockFormat, ParsedText, Tools, quoted
from mcp_rollout.rollout.formats.values import decode_arguments
from mcp_rollout.rollout.types import Call

_SECTION = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
_BEGIN, _ARGUMENTS, _END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_CALL = re.compile(f"{re.escape(_BEGIN)}(.*?)({re.escape(_END)}|(?={re.escape(_BEGIN)})|\\Z)", re.DOTALL)
_ID = re.compile(r"(?:functions\.)?(.*?)(?::\d+)?")


class _KimiFormat(BlockFormat):
    def read(self, text: str, tools: Tools, *, opened: bool = False) -> ParsedText:
        # As `super` in `BlockFormat.markers`. Templates write a call's id, so that an unreadable one needs one as well.
        parsed = super().read(text, tools, opened=opened)
        parsed.calls = [
            call if call.id is not None else replace(call, id=f"functions.{call.name or 'unreadable'}:{index}")
            for index, call in enumerate(parsed.calls)
        ]
        return parsed

    def read_block(self, body: str, tools: Tools) -> list[Call]:
        """All calls of a section."""
        calls = [self._call(match.group(1), whole=bool(match.group(2))) for match in _CALL.finditer(body)]
        rest = _CALL.sub("", body).strip()
        if rest or not calls:
            calls.append(self.unreadable(f"The section holds {quoted(rest) if rest else 'nothing'}"))
        return calls

    def _call(self, text: str, *, whole: bool) -> Call:
        written, marker, arguments = text.partition(_ARGUMENTS)
        identity = written.strip()
        named = _ID.fullmatch(identity)
        name = named.group(1) if named else identity
        if not marker:
            return self.unreadable(f"The tool call has no {_ARGUMENTS}")
        if not whole:
            return self.unreadable(f"The tool call has no {_END}", name=name, id=identity)
        try:
            return Call(name=name, id=identity, arguments=decode_arguments(arguments))
        except ValueError as error:
            return self.unreadable(str(error), name=name, id=identity)


KIMI = _KimiFormat(
    name="kimi",
    call_syntax=f"between {_SECTION[0]} and {_SECTION[1]}, write {_BEGIN}functions.NAME:INDEX{_ARGUMENTS}<an object>"
    f"{_END} for each",
    call=_SECTION,
    inner_marker=_BEGIN,
    end_tokens=("<|im_end|>", "[EOS]"),
    truncated_end=("<|im_end|>", "<|im_end|>"),
    call_end_optional=True,
    more_markers=(_ARGUMENTS, _END),
    around_think_end=("", ""),
)
