"""What servers can make long has a bound in counted work: characters, steps, tries, lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mcp_rollout.gateway.catalogue import hidden_text
from mcp_rollout.gateway.catalogue.hidden_text import Budget, find_hidden, find_hidden_in_tool, plain
from mcp_rollout.gateway.schemas import compiled
from mcp_rollout.gateway.schemas.arguments import prepare
from mcp_rollout.gateway.schemas.check import schema_fault
from mcp_rollout.gateway.schemas.compiled import Program, TooMuch
from mcp_rollout.gateway.transport import http_answer
from mcp_rollout.gateway.transport.results import read_answer
from mcp_rollout.gateway.types import ToolDefinition
from mcp_rollout.mcp_wire.lines import LineSplitter

LONG = 400_000


def tool(schema: dict[str, Any], description: str = "") -> ToolDefinition:
    return ToolDefinition(server="s", name="t", exposed_name="t", description=description, input_schema=schema)


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch, place: Any, name: str) -> Iterator[Callable[[], int]]:
    """How often `place.name` was called within the block."""
    calls, real = 0, getattr(place, name)

    def counting(*given: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        return real(*given, **more)

    with monkeypatch.context() as patched:
        patched.setattr(place, name, counting)
        yield lambda: calls


@pytest.mark.parametrize(
    "text",
    [
        "\u200b" * LONG,
        "a\u200b" * (LONG // 2),
        "\U000e0041" * LONG,
        "\U0001f3f4" + "\U000e0061" * LONG,
        "\u200b\u202e" * (LONG // 2),
        "❤\ufe0f" * LONG,
    ],
    ids=["one run", "many runs", "tags", "an endless flag", "two kinds", "ordinary"],
)
def test_hidden_text_is_found_in_a_bounded_number_of_looks(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with counted(monkeypatch, hidden_text, "_is_usual") as looks:
        findings = find_hidden(text, "description")
        plain(text)
        assert looks() < LONG // 2
    assert not findings[-1].code_points and len(findings) <= 1001
    assert sum(len(found.code_points) for found in findings) < LONG


@pytest.mark.parametrize("description", ["a\u200b" * 400, "❤\ufe0f" * 400], ids=["hidden", "ordinary"])
def test_all_texts_of_a_server_share_the_characters_and_findings_that_are_looked_at(
    description: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = [tool({"type": "object"}, description) for _ in range(2000)]
    budget = Budget()
    with counted(monkeypatch, hidden_text, "_is_usual") as looks:
        findings = [found for each in tools for found in find_hidden_in_tool(each, budget)]
        assert looks() < Budget().characters
    assert len(findings) <= Budget().findings + len(tools)
    assert not findings[-1].code_points  # in the last tool, too


def test_text_that_is_not_examined_is_reported_for_its_tool() -> None:
    findings = find_hidden_in_tool(tool({"type": "object"}, "\u200b" * LONG))
    assert [found.code_points for found in findings] == [()] and findings[0].of == "t"


@pytest.mark.parametrize("value", [1 << 54, 1 << 64, -(1 << 70)])
def test_many_big_integers_that_are_to_be_unique_are_left_to_the_server(value: int) -> None:
    program = Program({"properties": {"x": {"type": "array", "uniqueItems": True}}})
    few, many = ({"x": [value + number for number in range(length)]} for length in (30, 3000))
    assert program.errors(few) == []
    with pytest.raises(TooMuch):
        program.errors(many)
    definition = tool({"properties": {"x": {"type": "array", "uniqueItems": True}}})
    assert prepare(definition, many).faults == []  # the server decides


@pytest.mark.parametrize(
    "pattern",
    ["(?!a){number}", "(a{{1000}}){{1000}}{number}", "(a|b)*a(a|b){{400}}{number}", "(?i)[b-z]{number}"],
)
def test_patterns_are_compiled_in_a_bounded_number_of_tries_however_many_are_rejected(
    pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = {"properties": {f"p{number}": {"pattern": pattern.format(number=number)} for number in range(300)}}
    with counted(monkeypatch, compiled, "options") as tries:
        assert schema_fault(schema) is None
        assert tries() < 200


def test_a_pattern_of_many_escapes_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    with counted(monkeypatch, compiled, "options") as tries:
        assert compiled.compiled_size(r"\s" * 200) is None
        assert tries() == 0


@pytest.mark.parametrize("last", [b"", b"half a line"])
def test_a_chunk_of_short_lines_is_split_without_a_look_at_each(last: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with counted(monkeypatch, LineSplitter, "_add") as looks:
        assert len(LineSplitter(1 << 20).feed(b"x\n" * LONG + last)) == LONG
        assert looks() <= 2


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_informational_heads_are_read_up_to_a_number(end: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    head = b"HTTP/1.1 103 Early Hints" + end
    with (
        counted(monkeypatch, http_answer.HttpAnswer, "on_headers_complete") as heads,
        pytest.raises(http_answer.HttpFault, match="more than 16 informational heads"),
    ):
        answer = http_answer.HttpAnswer(1 << 20)
        answer.feed(head * 16)
        answer.feed(head * 10_000)
    assert heads() == 17


def test_an_event_stream_is_taken_in_pieces() -> None:
    answer = http_answer.HttpAnswer(8 << 20)
    answer.feed(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + b"\n" * (4 << 20))
    assert len(answer.take(1 << 17)) == 1 << 17 and len(answer.take()) == (4 << 20) - (1 << 17)


def test_divisions_by_a_multiple_are_counted_by_what_they_cost() -> None:
    assert Program({"type": "array", "items": {"multipleOf": 0.01}}).errors([0.5] * 1000) == []
    for divisor, most in ((0.01, 5000), (5e-324, 1500), (10**300, 1500)):
        with pytest.raises(TooMuch):
            Program({"type": "array", "items": {"multipleOf": divisor}}).errors([1e308] * most)


def test_blocks_that_are_not_plain_text_are_bounded_in_number() -> None:
    block = {"type": "text", "text": "x", "annotations": {"priority": 1}}
    read_answer({"content": [block] * 2000}, "2025-11-25")
    read_answer({"content": [{"type": "text", "text": "x"}] * 9999}, "2025-11-25")
    with pytest.raises(ValueError, match="the most is 2000"):
        read_answer({"content": [block] * 9999}, "2025-11-25")
