"""Near-misses are mended where the schema leaves one reading, and nowhere else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_rollout.gateway.schemas.arguments import prepare
from mcp_rollout.gateway.types import ToolDefinition, canonical_json

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "count": {"type": "integer", "minimum": 1},
        "price": {"type": "number"},
        "sure": {"type": "boolean"},
        "where": {"type": "object", "properties": {"lines": {"type": "array", "items": {"type": "integer"}}}},
        "perhaps": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "either": {"anyOf": [{"type": "boolean"}, {"type": "array"}, {"type": "object"}]},
        "clash": {"anyOf": [{"type": "object", "required": ["a"]}, {"type": "integer"}]},
        "many": {"type": ["integer", "number", "null"]},
        "text": {"type": "string"},
        "free": {},
        "level": {"enum": [1, 2, 3]},
        "literal": {"enum": [1, 2, 3], "type": "integer"},
        "maybe": {"anyOf": [{"enum": [1, 2, 3], "type": "integer"}, {"type": "null"}], "default": None},
        "only": {"const": 7},
        "mixed": {"enum": ["low", 1, True, [1]]},
        "named": {"anyOf": [{"enum": ["auto"], "type": "string"}, {"type": "integer"}]},
    },
    "additionalProperties": False,
}
TOOL = ToolDefinition(server="s", name="t", exposed_name="t", description="", input_schema=SCHEMA)


@pytest.mark.parametrize(
    ("given_", "sent"),
    [
        ({"count": "3"}, {"count": 3}),
        ({"price": "3"}, {"price": 3}),
        ({"price": "-0.5e2"}, {"price": -50.0}),
        ({"sure": "true"}, {"sure": True}),
        ({"where": '{"lines": [1]}'}, {"where": {"lines": [1]}}),
        ({"where": {"lines": "[1, 2]"}}, {"where": {"lines": [1, 2]}}),
        ({"where": {"lines": [1, "2"]}}, {"where": {"lines": [1, 2]}}),
        ({"perhaps": "4"}, {"perhaps": 4}),
        ({"either": "[]"}, {"either": []}),
        ({"many": "7"}, {"many": 7}),
        ({"clash": "5"}, {"clash": 5}),
        ({"count": "2", "text": "2", "free": "2"}, {"count": 2, "text": "2", "free": "2"}),
        ({"level": "2"}, {"level": 2}),
        ({"literal": "2"}, {"literal": 2}),
        ({"maybe": "2"}, {"maybe": 2}),
        ({"only": "7"}, {"only": 7}),
        ({"mixed": "1"}, {"mixed": 1}),
        ({"mixed": "true"}, {"mixed": True}),
        ({"mixed": "[1]"}, {"mixed": [1]}),
        ({"named": "5"}, {"named": 5}),
        ('{"count": 3}', {"count": 3}),
        ('{"count": "3"}', {"count": 3}),
    ],
)
def test_a_string_that_holds_the_one_value_due_is_read(given_: Any, sent: dict[str, Any]) -> None:
    before = json.dumps(given_)
    prepared = prepare(TOOL, given_)
    assert not prepared.faults and canonical_json(prepared.arguments) == canonical_json(sent)
    assert prepared.changes and json.dumps(given_) == before


@pytest.mark.parametrize(
    "given_",
    [
        {"count": "three"},
        {"count": "3.0"},
        {"count": "03"},
        {"count": " 3"},
        {"count": "0"},  # below the minimum
        {"price": "NaN"},
        {"price": "1e999"},
        {"sure": "True"},
        {"sure": 1},
        {"where": "[1]"},
        {"where": "{"},
        {"where": '{"x": NaN}'},
        {"where": '{"x": "\\ud800"}'},
        {"where": '{"lines": "x"}'},
        {"perhaps": "null"},
        {"clash": '{"b": 1}'},  # an object, and not the one due
        {"text": 5},
        {"count": "3", "sure": "maybe"},  # all or nothing
        {"unknown": "3", "count": "3"},
        {"level": "4"},
        {"literal": "2.0"},
        {"maybe": "null"},
        {"mixed": "false"},
        {"named": "manual"},
        ["count"],
        "3",
        "[]",
        '{"count": "three"}',
        '{"count": 3',
        '{"free": ' + "[" * 500 + "]" * 500 + "}",
    ],
)
def test_nothing_else_is_guessed(given_: Any) -> None:
    prepared = prepare(TOOL, given_)
    assert prepared.faults and not prepared.arguments and not prepared.changes


def test_what_was_sent_instead_of_one_string_for_everything_is_recorded() -> None:
    prepared = prepare(TOOL, '{"count": "3", "text": "x"}')
    assert prepared.changes == {"$": {"count": "3", "text": "x"}, "count": 3}


def test_arguments_that_fit_are_left_alone() -> None:
    prepared = prepare(TOOL, {"text": "3", "free": "[]"})
    assert prepared.arguments == {"text": "3", "free": "[]"} and not prepared.changes and not prepared.faults


@given(
    st.dictionaries(st.sampled_from(sorted(SCHEMA["properties"])), st.text(max_size=6) | st.integers() | st.booleans())
)
def test_what_comes_out_always_fits(given_: dict[str, Any]) -> None:
    prepared = prepare(TOOL, given_)
    if not prepared.faults:
        again = prepare(TOOL, prepared.arguments)
        assert again.arguments == prepared.arguments and not again.changes
