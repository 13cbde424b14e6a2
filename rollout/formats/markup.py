"""Calls as markup, parameters without quotes: qwen3_coder, seed, minimax, deepseek_v4 and glm."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from mcp_rollout.rollout.formats.format import BlockFormat, Tools, quoted
from mcp_rollout.rollout.formats.values import decode_json, parameter_types, typed
from mcp_rollout.rollout.types import Call

_DSML = "\uff5cDSML\uff5c"
_GLM_BETWEEN = re.compile(r"</arg_key>\s*<arg_value>")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Element:
    """An opening tag, whose first group is a name, and the closing one. Elements of one kind do not nest.

    Where `opening` would read far for a tag that is no tag, it matches what it has read, without a name: a search that
    begins anew at each of many would be quadratic.
    """

    opening: re.Pattern[str]
    ending: str

    def split(self, text: str) -> tuple[list[tuple[re.Match[str], str | None]], str]:
        """All elements with their bodies, None for an unclosed one, and the text between them."""
        found: list[tuple[re.Match[str], str | None]] = []
        between: list[str] = []
        position = after = 0
        while (tag := self.opening.search(text, after)) is not None:
            after = tag.end()
            if tag.group(1) is None:
                continue
            between.append(text[position : tag.start()])
            end = text.find(self.ending, after)
            found.append((tag, None if end < 0 else text[after:end]))
            position = after = len(text) if end < 0 else end + len(self.ending)
        return found, " ".join([*between, text[position:]]).strip()


def _tag(kind: str) -> re.Pattern[str]:
    return re.compile(rf"<{kind}=(?:([^>\n]*+)>|[^>\n]*+)")


def _by_schema_in_lines(_: re.Match[str], text: str, kinds: set[str] | None) -> object:
    """The value of qwen3_coder, on separate lines; without a schema it is text, and `null` is null."""
    text = text.removeprefix("\n").removesuffix("\n")
    if text.lower() == "null" and "string" not in (kinds or ()):
        return None
    return text if kinds is None else typed(text, kinds)


def _by_attribute(tag: re.Match[str], text: str, _: set[str] | None) -> object:
    """The value of deepseek_v4, whose tag says whether it is a string."""
    return text if tag.group(2) == "true" else decode_json(text)


@dataclass(frozen=True, kw_only=True, slots=True)
class _MarkupFormat(BlockFormat):
    """A function element around parameter elements."""

    function: _Element = _Element(opening=_tag("function"), ending="</function>")
    parameter: _Element = _Element(opening=_tag("parameter"), ending="</parameter>")
    value: Callable[[re.Match[str], str, set[str] | None], object] = lambda _, text, kinds: typed(text, kinds)
    """(a parameter's tag, its text, its JSON types) -> its value; raises ValueError for broken JSON."""

    def read_block(self, body: str, tools: Tools) -> list[Call]:
        functions, rest = self.function.split(body)
        calls = [self._call(tag.group(1).strip(), inside, tools) for tag, inside in functions]
        if rest or not calls:
            calls.append(self.unreadable(f"The tool call holds {quoted(rest) if rest else 'nothing'}"))
        return calls

    def _call(self, name: str, inside: str | None, tools: Tools) -> Call:
        if inside is None:
            return self.unreadable(f"The tool call has no {self.function.ending}", name=name)
        found, rest = self.parameter.split(inside)
        if rest:
            return self.unreadable(f"{quoted(rest)} is not a parameter", name=name)
        types, arguments = parameter_types(tools, name), dict[str, object]()
        for tag, text in found:
            key = tag.group(1).strip()
            if text is None:
                return self.unreadable(f"The parameter {key!r} has no {self.parameter.ending}", name=name)
            if key in arguments:
                return self.unreadable(f"The parameter {key!r} is given twice", name=name)
            try:
                arguments[key] = self.value(tag, text, types(key))
            except ValueError as error:
                return self.unreadable(f"The parameter {key!r} is not valid JSON ({error})", name=name)
        return Call(name=name, arguments=arguments)


class _GLMFormat(BlockFormat):
    """The tool's name, then pairs of `<arg_key>` and `<arg_value>`."""

    def read_block(self, body: str, tools: Tools) -> list[Call]:
        name, marker, rest = body.partition("<arg_key>")
        name, rest = name.strip(), marker + rest
        if not name or "<" in name:
            return [self.unreadable(f"The tool call names no tool, but begins with {quoted(body)}")]
        pairs, left = _glm_pairs(rest)
        if left:
            return [self.unreadable(f"{quoted(left)} is not an argument", name=name)]
        types, arguments = parameter_types(tools, name), dict[str, object]()
        for key, value in pairs:
            if key in arguments:
                return [self.unreadable(f"The argument {key!r} is given twice", name=name)]
            arguments[key] = typed(value, types(key))
        return [Call(name=name, arguments=arguments)]


def _glm_pairs(text: str) -> tuple[list[tuple[str, str]], str]:
    """All keys with the text of their values, and the text between the pairs.

    One expression for a pair would search the rest of the text from each key and each value that lacks its end. Here
    the first marker that is missing ends the search: no later pair can be whole without it.
    """
    pairs, between, position = list[tuple[str, str]](), list[str](), 0
    while (
        (begin := text.find("<arg_key>", position)) >= 0
        and (middle := _GLM_BETWEEN.search(text, begin + len("<arg_key>"))) is not None
        and (end := text.find("</arg_value>", middle.end())) >= 0
    ):
        between.append(text[position:begin])
        pairs.append((text[begin + len("<arg_key>") : middle.start()].strip(), text[middle.end() : end]))
        position = end + len("</arg_value>")
    return pairs, "".join([*between, text[position:]]).strip()


QWEN3_CODER = _MarkupFormat(
    name="qwen3_coder",
    call_syntax="write <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>",
    value=_by_schema_in_lines,
    inner_marker="<function=",
    end_tokens=("<|im_end|>", "<|endoftext|>"),
    truncated_end=("<|im_end|>", "<|im_end|>"),
    call_end_optional=True,
)
SEED = _MarkupFormat(
    name="seed",
    call_syntax="write <seed:tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></seed:tool_call>",
    think=("<seed:think>", "</seed:think>"),
    call=("<seed:tool_call>", "</seed:tool_call>"),
    inner_marker="<function=",
    end_tokens=("<seed:eos>",),
    truncated_end=("<seed:eos>", "<seed:eos>"),
    around_think_end=("", ""),
)
MINIMAX = _MarkupFormat(
    name="minimax",
    call_syntax='write <minimax:tool_call><invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>'
    "</minimax:tool_call>",
    call=("<minimax:tool_call>", "</minimax:tool_call>"),
    function=_Element(opening=re.compile(r'<invoke name="([^"]*)">'), ending="</invoke>"),
    parameter=_Element(opening=re.compile(r'<parameter name="([^"]*)">'), ending="</parameter>"),
    inner_marker="<invoke ",
    end_tokens=("[e~[",),
    truncated_end=("[e~[", "[e~["),
)
DEEPSEEK_V4 = _MarkupFormat(
    name="deepseek_v4",
    call_syntax=f'write <{_DSML}tool_calls><{_DSML}invoke name="NAME"><{_DSML}parameter name="KEY" '
    f'string="true or false">VALUE</{_DSML}parameter></{_DSML}invoke></{_DSML}tool_calls>',
    call=(f"<{_DSML}tool_calls>", f"</{_DSML}tool_calls>"),
    function=_Element(opening=re.compile(rf'<{_DSML}invoke name="([^"]*)">'), ending=f"</{_DSML}invoke>"),
    parameter=_Element(
        opening=re.compile(rf'<{_DSML}parameter name="([^"]*)" string="(true|false)">'), ending=f"</{_DSML}parameter>"
    ),
    value=_by_attribute,
    inner_marker=f"<{_DSML}invoke",
    end_tokens=("<\uff5cend\u2581of\u2581sentence\uff5c>",),
    truncated_end=(None, None),  # verl's builder ends the turn itself
    around_think_end=("", ""),
)
GLM = _GLMFormat(
    name="glm",
    call_syntax="write <tool_call>NAME, then <arg_key>KEY</arg_key><arg_value>VALUE</arg_value> for each, then "
    "</tool_call>",
    inner_marker="<arg_key>",
    end_tokens=("<|observation|>", "<|user|>", "<|endoftext|>"),
    stop_tokens=("<|user|>",),
    truncated_end=(None, None),  # the next message's opening marker ends a turn
    around_think_end=("", "\n"),
    more_markers=("</arg_key>", "<arg_value>", "</arg_value>"),
)
