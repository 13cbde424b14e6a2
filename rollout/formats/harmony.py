"""gpt-oss: a completion is a row of messages, each with a header that says where it goes.

`<|channel|>analysis<|message|>a thought<|end|><|start|>assistant<|channel|>commentary to=functions.NAME
<|constrain|>json<|message|>{"an": "object"}<|call|>`; the first message's `<|start|>assistant` is the prompt's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import cast

from rollout.formats.blocks import quoted
from rollout.formats.reading import Reading, Tools
from rollout.formats.values import decode_json
from rollout.types import Call, ThoughtMarkers

START, MESSAGE, END, CALL, RETURN = "<|start|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"
SHAPE = f"write {START}assistant<|channel|>commentary to=functions.NAME <|constrain|>json{MESSAGE}<an object>{CALL}"
_MESSAGE = re.compile(r"(?:<\|start\|>)?(.*?)(<\|end\|>|<\|call\|>|<\|return\|>|(?=<\|start\|>)|\Z)", re.DOTALL)
_RECIPIENT = re.compile(r"\bto=([^\s<]*)")
_CHANNEL = re.compile(r"<\|channel\|>\s*([^\s<]+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Harmony:
    """The gpt-oss format."""

    name: str = "gpt-oss"
    ends: tuple[str, ...] = (RETURN, "<|endoftext|>")
    stops: tuple[str, ...] = (CALL, RETURN)
    closing: tuple[str | None, str | None] = (CALL, END)
    thought: ThoughtMarkers | None = None

    def opens(self, prompt: str) -> bool:
        return False  # the prompt ends before the header that says what the message is

    def read(self, text: str, tools: Tools, *, opened: bool = False) -> Reading:
        thoughts: list[str] = []
        said: list[str] = []
        calls: list[Call] = []
        places: list[tuple[int, int]] = []
        in_thought = False
        for match in _MESSAGE.finditer(text):
            header, marker, body = match.group(1).partition(MESSAGE)
            recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
            if recipient is not None:
                calls.append(_call(recipient.group(1), body if marker else None, match.group(2)))
            elif not marker:
                said.append(_without_role(header))
            elif match.group(2) == CALL:
                calls.append(Call(name="", problem=f"The message ends in {CALL} and names no tool; {SHAPE}."))
                said.append(body)
            elif channel is not None and channel.group(1) == "analysis":
                thoughts.append(body)
                places.append(match.span())
                in_thought = not match.group(2) and match.end() == len(text)
            else:
                said.append(body)
        content = "\n".join(filter(None, (part.strip() for part in said)))
        return Reading(
            thinking="\n".join(filter(None, thoughts)),
            content=content,
            calls=tuple(calls),
            thoughts=tuple(places),
            in_thought=in_thought,
        )


def _without_role(header: str) -> str:
    """What stands in front of a message that never begins: text, unless it is the header's own words."""
    return re.sub(r"^assistant\b|<\|channel\|>\s*\w*|<\|constrain\|>\s*\w*", "", header)


def _call(recipient: str, body: str | None, ending: str) -> Call:
    place, _, name = recipient.rpartition("functions.")
    if place or not recipient.startswith("functions."):
        problem = f"{quoted(recipient)} is no tool; {SHAPE}."
        return Call(name=recipient, problem=problem)
    if body is None or ending != CALL:
        return Call(name=name, problem=f"The tool call has no {MESSAGE if body is None else CALL}; {SHAPE}.")
    try:
        arguments = decode_json(body)
    except ValueError as error:
        return Call(name=name, problem=f"The arguments are not valid JSON ({error}); {SHAPE}.")
    if not isinstance(arguments, dict):
        return Call(name=name, problem=f"The arguments must be an object, not {type(arguments).__name__}; {SHAPE}.")
    return Call(name=name, arguments=cast("dict[str, object]", arguments))
