"""gpt-oss: a completion is a series of messages, each with a header that names its channel and recipient.

`<|channel|>analysis<|message|>a thought<|end|><|start|>assistant<|channel|>commentary to=functions.NAME
<|constrain|>json<|message|>{"an": "object"}<|call|>`; the first message's `<|start|>assistant` is the prompt's.
"""

from __future__ import annotations

import re

from mcp_rollout.rollout.formats.format import Format, ParsedText, Tools, quoted
from mcp_rollout.rollout.formats.values import decode_arguments
from mcp_rollout.rollout.types import Call, ThoughtMarkers

_START, _MESSAGE, _END, _CALL, _RETURN = "<|start|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"
_MESSAGES = re.compile(r"(?:<\|start\|>)?(.*?)(<\|end\|>|<\|call\|>|<\|return\|>|(?=<\|start\|>)|\Z)", re.DOTALL)
_RECIPIENT = re.compile(r"\bto=([^\s<]*)")
_CHANNEL = re.compile(r"<\|channel\|>\s*([^\s<]+)")
_HEADER_WORDS = re.compile(r"^assistant\b|<\|channel\|>\s*\w*|<\|constrain\|>\s*\w*")


class _HarmonyFormat(Format):
    @property
    def thought(self) -> ThoughtMarkers | None:
        return None

    def opens_thought(self, prompt: str) -> bool:
        return False  # the prompt ends before the header that says what the message is

    def read(self, text: str, tools: Tools, *, opened: bool = False) -> ParsedText:
        parsed, content = ParsedText(), list[str]()
        for match in _MESSAGES.finditer(text):
            header, marker, body = match.group(1).partition(_MESSAGE)
            recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
            if recipient is not None:
                parsed.calls.append(self._call(recipient.group(1), body if marker else None, match.group(2)))
            elif not marker:  # a message that never begins: text, unless it is the header's own words
                content.append(_HEADER_WORDS.sub("", header))
            elif match.group(2) == _CALL:
                parsed.calls.append(self.unreadable(f"The message ends in {_CALL} and names no tool"))
                content.append(body)
            elif channel is not None and channel.group(1) == "analysis":
                parsed.add_thought(body, *match.span(), is_open=not match.group(2) and match.end() == len(text))
            else:
                content.append(body)
        parsed.content = "\n".join(filter(None, map(str.strip, content)))
        return parsed

    def _call(self, recipient: str, body: str | None, ending: str) -> Call:
        before, _, name = recipient.rpartition("functions.")
        if before or not recipient.startswith("functions."):
            return self.unreadable(f"{quoted(recipient)} is not a tool", name=recipient)
        if body is None or ending != _CALL:
            return self.unreadable(f"The tool call has no {_MESSAGE if body is None else _CALL}", name=name)
        try:
            return Call(name=name, arguments=decode_arguments(body))
        except ValueError as error:
            return self.unreadable(str(error), name=name)


GPT_OSS = _HarmonyFormat(
    name="gpt-oss",
    call_syntax=f"write {_START}assistant<|channel|>commentary to=functions.NAME <|constrain|>json{_MESSAGE}<an object>"
    f"{_CALL}",
    end_tokens=(_RETURN, "<|endoftext|>"),
    stop_tokens=(_CALL, _RETURN),
    truncated_end=(_CALL, _END),
    more_markers=(_START, _MESSAGE, "<|channel|>", "<|constrain|>"),
)
