"""Calls as markup: a function element around parameter elements (qwen3_coder, seed, minimax, deepseek_v4)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from rollout.formats.blocks import quoted
from rollout.formats.reading import Tools
from rollout.formats.values import parameters, typed
from rollout.types import Call


@dataclass(frozen=True, kw_only=True, slots=True)
class Element:
    """An opening tag, whose first group is a name, and the closing one. Elements of one kind do not nest."""

    opening: re.Pattern[str]
    ending: str

    def split(self, text: str) -> tuple[list[tuple[re.Match[str], str | None]], str]:
        """All elements with their bodies, None where one is not closed, and the text between them."""
        found: list[tuple[re.Match[str], str | None]] = []
        between: list[str] = []
        position = 0
        while (tag := self.opening.search(text, position)) is not None:
            between.append(text[position : tag.start()])
            end = text.find(self.ending, tag.end())
            found.append((tag, None if end < 0 else text[tag.end() : end]))
            position = len(text) if end < 0 else end + len(self.ending)
        return found, " ".join([*between, text[position:]]).strip()


@dataclass(frozen=True, kw_only=True, slots=True)
class Markup:
    """Reads the functions in a call block.

    Args:
        value: what the text of a parameter stands for, given its tag and its schema; ValueError says what is wrong.
    """

    function: Element
    parameter: Element
    shape: str
    value: Callable[[re.Match[str], str, object], object]

    def __call__(self, body: str, tools: Tools) -> list[Call]:
        functions, rest = self.function.split(body)
        calls = [self._call(tag.group(1).strip(), inside, tools) for tag, inside in functions]
        if rest or not calls:
            problem = f"The tool call holds {quoted(rest) if rest else 'nothing'}; {self.shape}."
            calls.append(Call(name="", problem=problem))
        return calls

    def _call(self, name: str, inside: str | None, tools: Tools) -> Call:
        if inside is None:
            return Call(name=name, problem=f"The tool call has no {self.function.ending}; {self.shape}.")
        found, rest = self.parameter.split(inside)
        if rest:
            return Call(name=name, problem=f"{quoted(rest)} is no parameter; {self.shape}.")
        known, arguments = parameters(tools, name), dict[str, object]()
        for tag, text in found:
            key = tag.group(1).strip()
            if text is None:
                return Call(name=name, problem=f"The parameter {key!r} has no {self.parameter.ending}; {self.shape}.")
            if key in arguments:
                return Call(name=name, problem=f"The parameter {key!r} is given twice; {self.shape}.")
            try:
                arguments[key] = self.value(tag, text, known.get(key))
            except ValueError as error:
                return Call(name=name, problem=f"The parameter {key!r} is not valid JSON ({error}); {self.shape}.")
        return Call(name=name, arguments=arguments)


def by_schema(_: re.Match[str], text: str, schema: object) -> object:
    """The value as the schema says; without one JSON where it is JSON, else the text without space around it."""
    return typed(text, schema)


def by_schema_in_lines(_: re.Match[str], text: str, schema: object) -> object:
    """The value of qwen3_coder, on lines of its own; without a schema it is text, and `null` is null."""
    text = text.removeprefix("\n").removesuffix("\n")
    if text.lower() == "null":
        return None
    return text if schema is None else typed(text, schema)
