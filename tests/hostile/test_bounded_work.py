"""What servers can make long has a bound in counted work: characters, steps, tries, lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import pytest

from gateway.catalogue import hidden_text
from gateway.catalogue.hidden_text import Budget, HiddenKind, find_hidden, find_hidden_in_tool, plain
from gateway.schemas import compiled
from gateway.schemas.arguments import prepare
from gateway.schemas.check import schema_fault
from gateway.schemas.compiled import MOST_EFFORT, Program, TooMuch
from gateway.transport import http_answer
from gateway.transport.results import read_answer
from gateway.types import ToolDefinition
from mcp_wire.lines import LineSplitter

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
        "é" * LONG,
    ],
    ids=["one run", "many runs", "tags", "an endless flag", "two kinds", "letters"],
)
def test_hidden_text_is_found_in_a_bounded_number_of_looks(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with counted(monkeypatch, hidden_text, "_kind") as looks:
        findings = find_hidden(text, "description")
        plain(text)
        assert looks() < 2 * LONG  # twice for each character that is examined at all, and of those there are few
    assert findings[-1].kind is HiddenKind.UNEXAMINED and len(findings) <= 101
    assert sum(len(found.code_points) for found in findings) < LONG


@pytest.mark.parametrize("description", ["a\u200b" * 400, "é" * 400], ids=["hidden", "letters"])
def test_all_texts_of_a_server_share_the_characters_and_findings_that_are_looked_at(
    description: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = [tool({"type": "object"}, description) for _ in range(2000)]
    budget = Budget()
    with counted(monkeypatch, hidden_text, "_kind") as looks:
        findings = [found for each in tools for found in find_hidden_in_tool(each, budget)]
        assert looks() < 2 * Budget().characters
    assert len(findings) <= Budget().findings + len(tools)
    assert findings[-1].kind is HiddenKind.UNEXAMINED  # in the last tool, too


def test_text_that_is_not_examined_is_reported_for_its_tool() -> None:
    findings = find_hidden_in_tool(tool({"type": "object"}, "\u200b" * LONG))
    assert [found.kind for found in findings] == [HiddenKind.UNEXAMINED] and findings[0].of == "t"


@pytest.mark.parametrize("value", [1 << 64, -(1 << 70)])
def test_big_integers_that_are_to_be_unique_count_as_often_as_they_are_compared(value: int) -> None:
    program = Program({"properties": {"x": {"type": "array", "uniqueItems": True}}})
    few, many = ({"x": [value + number for number in range(length)]} for length in (30, 3000))
    assert program.effort(few)[0] < MOST_EFFORT
    with pytest.raises(TooMuch):
        program.errors(many)
    definition = tool({"properties": {"x": {"type": "array", "uniqueItems": True}}})
    assert prepare(definition, many).faults == []  # the server decides


@pytest.mark.parametrize("pattern", ["(?!a){number}", "(a{{1000}}){{1000}}{number}", "(a|b)*a(a|b){{400}}{number}"])
def test_patterns_are_compiled_in_a_bounded_number_of_tries_however_many_are_rejected(
    pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = 300
    schema = {"properties": {f"p{number}": {"pattern": pattern.format(number=number)} for number in range(many)}}
    sizes: Counter[int] = Counter()
    real = compiled.options

    def options(size: int) -> Any:
        sizes[size] += 1
        return real(size)

    monkeypatch.setattr(compiled, "options", options)
    assert schema_fault(schema) is None
    smallest, *larger = compiled.SIZES
    assert sizes[smallest] <= many + 1
    kept = (8 << 20) // larger[0] + 1  # as many of the larger ones as there is room for
    assert sum(sizes[size] for size in larger) <= 2 * (kept + 3)


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


@pytest.mark.parametrize("divisor", [0.01, 7, 5e-324, 1e300, 2.5e-200, 10**300])
def test_divisions_by_a_multiple_are_counted_by_what_they_cost(divisor: float) -> None:
    program = Program({"type": "array", "items": {"multipleOf": divisor}})
    one, two = (program.effort([1e308] * number)[0] for number in (1, 2))
    digits = abs(Decimal(divisor).adjusted())
    assert two - one >= 150 + 4 * digits - 20
    assert Program({"type": "array", "items": {"multipleOf": 0.01}}).errors([0.5] * 1000) == []
    with pytest.raises(TooMuch):
        program.errors([1e308] * 5000)


def test_blocks_that_are_not_plain_text_are_bounded_in_number() -> None:
    block = {"type": "text", "text": "x", "annotations": {"priority": 1}}
    read_answer({"content": [block] * 2000}, "2025-11-25")
    read_answer({"content": [{"type": "text", "text": "x"}] * 9999}, "2025-11-25")
    with pytest.raises(ValueError, match="the most is 2000"):
        read_answer({"content": [block] * 9999}, "2025-11-25")
