"""Reading completions: where verl's parser reads a call ours reads the same; where it drops one ours says so."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tool_formats import DIALECTS, tokenizer_for

from mcp_rollout.rollout.formats import FORMATS
from mcp_rollout.rollout.types import Call

pytestmark = pytest.mark.usefixtures("imported_verl")

NAMES = ("note", "find_it")
WORDS = st.text("abcxyz .:!?-_äß\u4e2d\U0001f351", min_size=1, max_size=12).map(lambda text: f"p{text}q")
FLAT = WORDS | st.integers(-(10**9), 10**9) | st.booleans() | st.none() | st.floats(-1e6, 1e6).map(lambda x: x + 0.5)
NESTED = FLAT | st.lists(FLAT, max_size=2) | st.dictionaries(st.sampled_from("ab"), FLAT, max_size=2)


def calls_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Call]]:
    arguments = st.dictionaries(st.sampled_from(["text", "times", "where"]), values, max_size=3)
    return st.lists(st.builds(Call, name=st.sampled_from(NAMES), arguments=arguments), max_size=3)


def verl_reads(name: str, text: str) -> list[tuple[str, Any]]:
    """What verl's own parser makes of a text: names, and arguments where they are JSON."""
    from verl.experimental.agent_loop.tool_parser import ToolParser
    from verl.tools.schemas import OpenAIFunctionToolSchema

    logging.getLogger("verl").setLevel(logging.CRITICAL)
    tokenizer = tokenizer_for(name)
    parser = ToolParser.get_tool_parser(name, tokenizer)
    schema = {"type": "object", "properties": {}, "required": []}
    tools = [
        OpenAIFunctionToolSchema.model_validate(
            {"type": "function", "function": {"name": tool, "description": ".", "parameters": schema}}
        )
        for tool in NAMES
    ]
    ids = tokenizer.encode(text, add_special_tokens=False)
    _, calls = asyncio.run(parser.extract_tool_calls(ids, tools if name == "kimi" else None))
    return [(call.name, loaded(call.arguments)) for call in calls]


def loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def ours(name: str, text: str, tools: list[dict[str, Any]] | None = None) -> Any:
    known = FORMATS[name]
    for end in known.end_tokens:
        text = text.removesuffix(end)
    return known.read(text, tools or [], opened=name == "minimax")


@pytest.mark.parametrize("name", DIALECTS)
@given(data=st.data(), thinking=WORDS, content=WORDS)
@settings(max_examples=25, deadline=None, derandomize=True, database=None)
def test_a_whole_call_is_read_as_verl_reads_it(name: str, data: st.DataObject, thinking: str, content: str) -> None:
    # verl's gemma4 parser takes nested values apart at their commas.
    calls = data.draw(calls_of(FLAT if name == "gemma4" else NESTED))
    # verl's gpt-oss parser wants a message before the call; ours reads one that comes first as well.
    text = DIALECTS[name].write(thinking, content, calls)
    reading = ours(name, text)
    assert [(call.name, call.arguments) for call in reading.calls] == verl_reads(name, text)
    assert [call.name for call in reading.calls] == [call.name for call in calls]
    assert all(call.problem is None for call in reading.calls)
    assert (reading.thinking.strip(), reading.content) == (thinking, content)
    if name == "kimi":
        assert [call.id for call in reading.calls] == [f"functions.{c.name}:{i}" for i, c in enumerate(calls)]


@pytest.mark.parametrize("name", DIALECTS)
@given(data=st.data())
@settings(max_examples=25, deadline=None, derandomize=True, database=None)
def test_a_tools_schema_gives_every_value_back_as_it_was(name: str, data: st.DataObject) -> None:
    text = st.sampled_from(["12", "true", "null", " x ", "[1]", "\nx\n"]) | WORDS
    arguments = {"text": data.draw(text), "times": data.draw(st.integers()), "where": data.draw(st.lists(text))}
    kinds = {"text": "string", "times": "integer", "where": "array"}
    properties = {key: {"type": kind} for key, kind in kinds.items()}
    tool = {"type": "function", "function": {"name": "note", "parameters": {"properties": properties}}}
    reading = ours(name, DIALECTS[name].write("", "", [Call(name="note", arguments=arguments)]), [tool])
    assert reading.calls == [Call(name="note", arguments=arguments, id=reading.calls[0].id)]


def test_of_a_string_or_another_type_the_value_decides_and_a_nullable_string_can_be_null() -> None:
    def read(text: str, schema: Any) -> object:
        tool = {"type": "function", "function": {"name": "note", "parameters": {"properties": {"x": schema}}}}
        (call,) = ours(
            "glm", f"<tool_call>note<arg_key>x</arg_key><arg_value>{text}</arg_value></tool_call>", [tool]
        ).calls
        return call.arguments["x"]

    either, nullable = {"anyOf": [{"type": "string"}, {"type": "number"}]}, {"type": ["string", "null"]}
    assert [read(text, either) for text in ("12", "1e5", "true", "twelve")] == [12, 1e5, "true", "twelve"]
    assert [read(text, nullable) for text in ("12", "null", "nil")] == ["12", None, "nil"]
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(3000):
        deep = {"anyOf": [deep]}
    assert read("12", deep) == 12  # as without a schema: what nests deeper than a bound says nothing


def pieces(name: str) -> list[str]:
    """Markers of the format, and text: what broken completions are made of."""
    markers = [marker for marker in DIALECTS[name].markers if marker not in FORMATS[name].end_tokens]
    return [*markers, "<function=note>", "</function>", '"name"', '{"a": ', "}", "note", "\n", "call:"]


@pytest.mark.parametrize("name", DIALECTS)
@given(data=st.data())
@settings(max_examples=30, deadline=None, derandomize=True, database=None)
def test_a_broken_completion_loses_no_call(name: str, data: st.DataObject) -> None:
    text = DIALECTS[name].write("hm", "so", data.draw(calls_of(FLAT).filter(bool)))
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 30)))
    text = text[:start] + "".join(data.draw(st.lists(st.sampled_from(pieces(name)), max_size=3))) + text[end:]
    reading = ours(name, text)
    whole = [(call.name, call.arguments) for call in reading.calls if call.problem is None]
    problems = [call.name for call in reading.calls if call.problem is not None]
    # What verl reads and ours does not is one of ours with a problem, of that name or of none, each for one call.
    for called, arguments in verl_reads(name, text):
        if (called, arguments) in whole:
            whole.remove((called, arguments))
        elif called not in reading.thinking:
            own = [problem for problem in (called, "") if problem in problems]
            # verl guesses which tool a name that it does not know may mean under kimi.
            own += [*problems, *(unknown for unknown, _ in whole if unknown not in NAMES)] if name == "kimi" else []
            assert own, text
            if own[0] in problems:
                problems.remove(own[0])
    opening = "to=functions" if name == "gpt-oss" else FORMATS[name].call[0]  # type: ignore[attr-defined]
    if opening in text:
        assert reading.calls or opening in reading.thinking + reading.content, text


@pytest.mark.parametrize("name", DIALECTS)
def test_every_cut_of_a_call_is_answered(name: str) -> None:
    call = Call(name="note", arguments={"text": "plums"})
    text = DIALECTS[name].write("", "", [call])
    begun = len(text.partition("note")[0])
    for cut in range(begun, len(text) + 1):
        (read,) = ours(name, text[:cut]).calls
        assert read.problem is not None or (read.name, read.arguments) == (call.name, call.arguments), text[:cut]
        assert read.problem is None or not read.arguments
    assert ours(name, text).calls[0].problem is None


BROKEN = {
    "hermes": ('<tool_call>{"name": "note", "arguments": {</tool_call>', "not valid JSON"),
    "qwen3_coder": ("<tool_call>\n<function=note>\n<parameter=text>\nx\n</function>\n</tool_call>", "no </parameter>"),
    "glm": ("<tool_call>note\n<arg_key>text</arg_key>\n<arg_value>x\n</tool_call>", "is not an argument"),
    "seed": ("<seed:tool_call>\n<function=note>\n<parameter=text>x\n</seed:tool_call>", "no </function>"),
    "minimax": ('<minimax:tool_call>\n<invoke name="note">\n</minimax:tool_call>', "no </invoke>"),
    "kimi": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.note:0<|tool_call_argument_begin|>{"
        "<|tool_call_end|><|tool_calls_section_end|>",
        "not valid JSON",
    ),
    "deepseek_v4": (
        "<\uff5cDSML\uff5ctool_calls>\n<\uff5cDSML\uff5cinvoke name=note>\n</\uff5cDSML\uff5cinvoke>\n"
        "</\uff5cDSML\uff5ctool_calls>",
        "holds",
    ),
    "gemma4": ('<|tool_call>call:note{text:<|"|>x}<tool_call|>', "cannot be read"),
    "gpt-oss": (
        '<|channel|>commentary to=functions.note <|constrain|>json<|message|>{"text"<|call|>',
        "not valid JSON",
    ),
}


@pytest.mark.parametrize("name", DIALECTS)
def test_a_malformed_call_says_what_is_wrong_and_how_a_call_is_written(name: str) -> None:
    text, problem = BROKEN[name]
    (call,) = ours(name, ("</think>" if name == "minimax" else "") + text).calls
    assert call.problem is not None and problem in call.problem and "write" in call.problem
    assert call.name == ("" if name == "deepseek_v4" else "note")
    # verl calls without the argument, or not at all; under qwen3_coder it takes half a parameter for a whole one.
    assert ("note", {"text": "x"}) not in verl_reads(name, text) or name == "qwen3_coder"


@pytest.mark.parametrize("name", [name for name in DIALECTS if name != "gpt-oss"])
def test_a_call_inside_a_thought_is_a_thought_and_alone_it_is_answered(name: str) -> None:
    opening, ending = FORMATS[name].think  # type: ignore[attr-defined]
    call = FORMATS[name].call[0]  # type: ignore[attr-defined]
    thought = f"{opening}\nmaybe {call}note{ending}" if name != "minimax" else f"maybe {call}note{ending}"
    reading = ours(name, thought + "No.")
    assert (reading.calls, reading.content) == ([], "No.") and call in reading.thinking
    for alone in (thought, thought.removesuffix(ending)):
        (told,) = ours(name, alone).calls
        assert told.problem is not None and "inside a thought" in told.problem


def test_gpt_oss_calls_that_verl_drops_in_silence_are_read() -> None:
    first = '<|channel|>commentary to=functions.note <|constrain|>json<|message|>{"text": "x"}<|call|>'
    headed = ' to=functions.note<|channel|>commentary json<|message|>{"text": "x"}<|call|>'
    for text in (first, headed):
        assert verl_reads("gpt-oss", text) == []
        assert ours("gpt-oss", text).calls == [Call(name="note", arguments={"text": "x"})]


@example(text="<tool_call>" * 3)
@given(text=st.text())
@settings(max_examples=30, deadline=None, derandomize=True, database=None)
def test_no_text_breaks_a_reader(text: str) -> None:
    for name in DIALECTS:
        ours(name, text + DIALECTS[name].half + text)
