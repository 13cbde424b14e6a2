"""Reading and writing completions in the hermes format."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.formats.format import ParsedText
from mcp_rollout.rollout.types import Call

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def read(text: str) -> ParsedText:
    return hermes.HERMES.read(text, ())


PLAIN = st.text().filter(lambda text: "<" not in text).map(str.strip)


@given(
    thinking=PLAIN.filter(bool),
    content=PLAIN,
    calls=st.lists(
        st.builds(
            lambda name, arguments: Call(name=name, arguments=arguments),
            PLAIN.filter(bool),
            st.dictionaries(st.text(), JSON, max_size=3),
        ),
        max_size=3,
    ),
)
def test_what_was_written_is_read_back(thinking: str, content: str, calls: list[Call]) -> None:
    text = hermes.write(thinking=thinking, content=content, calls=calls)
    assume(text.count(hermes.THINK_CLOSE) == 1)  # an unopened thought ends there
    parsed = read(text)
    assert (parsed.thinking, parsed.content, list(parsed.calls)) == (thinking, content, calls)


def test_arguments_that_are_an_object_in_a_string_are_read_and_kept_as_they_were_written() -> None:
    (call,) = read('<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>').calls
    assert call == Call(name="add", arguments={"a": 1}, as_text='{"a": 1}')
    for text in ("3", '"[1]"', '"a: 1"'):
        (call,) = read(f'<tool_call>{{"name": "add", "arguments": {text}}}</tool_call>').calls
        assert call.problem is not None and "must be an object" in call.problem


def test_the_end_of_a_call_inside_its_arguments_does_not_end_it() -> None:
    call = Call(name="say", arguments={"text": "write </tool_call> last"})
    assert read(hermes.write(calls=[call])).calls == [call]


@pytest.mark.parametrize(
    ("keys", "arguments"),
    [
        ('"parameters": {"a": 1}', {"a": 1}),
        ('"arguments": {}, "parameters": {"a": 1}', {"a": 1}),
        ('"arguments": null, "parameters": {"a": 1}', {"a": 1}),
        ('"arguments": {"a": 1}, "parameters": {"a": 2}', {"a": 1}),
        ('"parameters": "{\\"a\\": 1}"', {"a": 1}),
        ('"id": "1", "type": "function"', {}),
    ],
)
def test_arguments_are_read_under_the_formats_key_and_under_llamas(keys: str, arguments: dict[str, int]) -> None:
    (call,) = read(f'<tool_call>{{"name": "add", {keys}}}</tool_call>').calls
    assert (call.name, call.arguments, call.problem) == ("add", arguments, None)


@pytest.mark.parametrize("key", ["args", "params", "input", "a"])
def test_arguments_under_another_key_are_not_sent_as_none(key: str) -> None:
    (call,) = read(f'<tool_call>{{"name": "add", "{key}": {{"a": 1}}}}</tool_call>').calls
    assert call.problem is not None and f"no \"arguments\", but '{key}'" in call.problem


def test_a_template_may_have_opened_the_thinking_already() -> None:
    parsed = read("I should add.\n</think>\n\nDone.")
    assert (parsed.thinking, parsed.content) == ("I should add.", "Done.")
