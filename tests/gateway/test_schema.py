"""Arguments against full schemas, and the projection that verl accepts."""

from typing import Any

import pytest

from mcp_rollout.gateway.schemas.arguments import prepare
from mcp_rollout.gateway.schemas.check import check_output
from mcp_rollout.gateway.schemas.projection import verl_parameters
from mcp_rollout.gateway.types import ToolDefinition


def tool(input_schema: dict[str, Any], output_schema: dict[str, Any] | None = None) -> ToolDefinition:
    return ToolDefinition(
        server="s",
        name="t",
        exposed_name="t",
        description="",
        input_schema=input_schema,
        output_schema=output_schema,
    )


ORDER = {
    "type": "object",
    "properties": {
        "items": {"type": "array", "items": {"$ref": "#/$defs/Item"}, "minItems": 1},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "speed": {"enum": ["slow", "fast"]},
    },
    "required": ["items"],
    "additionalProperties": False,
    "$defs": {"Item": {"type": "object", "properties": {"price": {"type": "number"}}, "required": ["price"]}},
}


@pytest.mark.parametrize(
    ("arguments", "faults"),
    [
        ({"items": [{"price": 1}], "note": None, "speed": "fast"}, []),
        ({"items": [{"price": "x"}]}, ['items[0].price: expected number, got "x"']),
        ({"items": [{}]}, ["items[0]: missing required 'price'"]),
        ({}, ["missing required 'items'"]),
        ({"items": [{"price": 1}], "note": 3}, ["note: expected string or null, got 3"]),
        ({"items": [{"price": 1}], "speed": "warp"}, ['speed: expected one of ["slow", "fast"], got "warp"']),
        ({"items": [{"price": 1}], "not": "x"}, ["unknown 'not'; did you mean 'note'?"]),
        ({"items": []}, ["items: [] has less than 1 item"]),
        (None, ["arguments: expected an object, got null"]),
        ("items", ['arguments: expected an object, got "items"']),
    ],
)
def test_every_fault_has_its_path_and_what_was_expected(arguments: Any, faults: list[str]) -> None:
    assert prepare(tool(ORDER), arguments).faults == faults


def test_messages_stay_short_and_few() -> None:
    schema = {"type": "object", "additionalProperties": {"type": "integer"}}
    faults = prepare(tool(schema), {f"k{number}": "x" * 1000 for number in range(100)}).faults
    assert len(faults) == 8 and all(len(fault) < 200 for fault in faults)


@pytest.mark.parametrize(
    "broken",
    [
        {"type": "objekt"},
        {"type": "object", "properties": {"x": {"$ref": "#/$defs/Nowhere"}}},
        {"type": "object", "properties": {"x": {"$ref": "https://example.com/schema"}}},
        {"type": "object", "properties": {"x": {"pattern": "("}}},
        {"$ref": "#"},
    ],
)
def test_a_schema_that_is_itself_broken_leaves_the_judgement_to_the_server(broken: dict[str, Any]) -> None:
    assert prepare(tool(broken), {"x": "y"}).faults == []


def test_output_is_checked_against_its_own_schema() -> None:
    checked = tool({}, {"type": "object", "properties": {"n": {"type": "integer"}}})
    assert check_output(checked, {"n": 1}) is None
    assert check_output(checked, {"n": "1"}) == 'n: expected integer, got "1"'
    assert check_output(tool({}), "anything") is None


@pytest.mark.parametrize(
    ("schema", "folded"),
    [
        ({"type": "integer", "description": "d"}, {"type": "integer", "description": "d"}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"type": ["string", "null"], "description": ""}),
        ({"$ref": "#/$defs/Color"}, {"type": "string", "description": "hue", "enum": ["red", "blue"]}),
        (
            {"anyOf": [{"$ref": "#/$defs/Color"}, {"type": "null"}], "description": "mine"},
            {"type": ["string", "null"], "description": "mine", "enum": ["red", "blue"]},
        ),
        ({"const": 3}, {"type": "integer", "description": "", "enum": [3]}),
        ({"allOf": [{"$ref": "#/$defs/Box"}]}, {"type": "object", "description": ""}),
        (
            {},
            {"type": ["string", "integer", "number", "boolean", "object", "array", "null"], "description": ""},
        ),
        ({"$ref": "#/$defs/Loop"}, {"type": ["string", "integer", "number", "boolean", "object", "array", "null"]}),
        (True, {"type": ["string", "integer", "number", "boolean", "object", "array", "null"], "description": ""}),
    ],
)
def test_a_property_is_folded_to_type_description_and_enum(schema: Any, folded: dict[str, Any]) -> None:
    root = {
        "properties": {"x": schema},
        "required": ["x"],
        "$defs": {
            "Color": {"enum": ["red", "blue"], "description": "hue"},
            "Box": {"type": "object"},
            "Loop": {"$ref": "#/$defs/Loop"},
        },
    }
    assert verl_parameters(root) == {
        "type": "object",
        "properties": {"x": {"description": "", **folded}},
        "required": ["x"],
    }


def test_a_schema_without_properties_gets_empty_ones() -> None:
    assert verl_parameters({"type": "object"}) == {"type": "object", "properties": {}, "required": []}


def test_a_pattern_of_the_servers_cannot_hold_up_the_process() -> None:
    # Python's own regular expressions would take years for this one.
    schema = {"type": "object", "properties": {"text": {"type": "string", "pattern": "^(a|aa)+$"}}}
    assert prepare(tool(schema), {"text": "a" * 80}).faults == []
    (fault,) = prepare(tool(schema), {"text": "a" * 80 + "!"}).faults
    assert fault.startswith("text: ") and "does not match" in fault
