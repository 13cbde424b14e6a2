"""What checking against a server's schema can cost is known beforehand and bounded: in steps, not in seconds."""

from __future__ import annotations

import gc
import resource
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest

from mcp_rollout.gateway.schemas.arguments import prepare
from mcp_rollout.gateway.schemas.check import check_output, check_value, schema_fault
from mcp_rollout.gateway.schemas.compiled import MOST_EFFORT, MOST_WORDED, Program, Programs, TooMuch, Unchecked
from mcp_rollout.gateway.schemas.extent import measure
from mcp_rollout.gateway.schemas.projection import verl_parameters
from mcp_rollout.gateway.types import ToolDefinition

DOUBLING: dict[str, Any] = {
    "allOf": lambda next_: {"allOf": [next_, next_]},
    "anyOf": lambda next_: {"anyOf": [next_, next_]},
    "if": lambda next_: {"if": next_, "then": next_, "else": next_},
    "dependentSchemas": lambda next_: {"dependentSchemas": {"a": next_, "b": next_}},
    "patternProperties": lambda next_: {"patternProperties": {"a": next_, "b?": next_}},
    "items": lambda next_: {"items": next_, "contains": next_},
}


def chain(doubling: Any, length: int) -> dict[str, Any]:
    links = {f"l{n}": doubling({"$ref": f"#/$defs/l{n + 1}"}) for n in range(length)}
    return {"$ref": "#/$defs/l0", "$defs": {**links, f"l{length}": {"type": "string"}}}


def tool(schema: dict[str, Any], output: dict[str, Any] | None = None) -> ToolDefinition:
    return ToolDefinition(
        server="s", name="t", exposed_name="t", description="", input_schema=schema, output_schema=output
    )


def nested(depth: int, leaf: Any = 1) -> Any:
    value = leaf
    for _ in range(depth):
        value = [value] if depth % 2 else {"a": value}
    return value


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "if", "dependentSchemas"])
def test_references_that_fan_out_are_counted_as_often_as_they_are_applied(keyword: str) -> None:
    short, longer = (Program(chain(DOUBLING[keyword], length)).effort("x")[0] for length in (8, 9))
    assert 1.9 * short < longer < 4 * short < MOST_EFFORT
    endless = Program(chain(DOUBLING[keyword], 60))
    with pytest.raises(TooMuch):
        endless.errors("x")
    assert prepare(tool(chain(DOUBLING[keyword], 60)), {"a": 1}).faults == []


@pytest.mark.parametrize("keyword", ["patternProperties", "items"])
def test_what_fans_out_into_members_and_items_is_counted_by_the_depth_of_the_value(keyword: str) -> None:
    program = Program(chain(DOUBLING[keyword], 60))
    efforts = [program.effort(nested(depth))[0] for depth in ((3, 9, 45) if keyword == "items" else (2, 8, 46))]
    assert efforts[0] * 50 < efforts[1] < MOST_EFFORT < efforts[2]


def test_an_ordinary_schema_costs_what_it_is_long_however_deep_it_refers_to_itself() -> None:
    tree = {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}, "n": {"type": "integer"}}}
    flat, deep = (Program(tree).effort(nested(depth))[0] / measure(nested(depth)).nodes for depth in (4, 40))
    assert deep < 15 * flat


def test_a_checkers_stack_holds_no_more_than_it_can() -> None:
    hops = 120
    defs: dict[str, Any] = {f"h{n}": {"allOf": [{"$ref": f"#/$defs/h{n + 1}"}]} for n in range(hops)}
    schema = {"$ref": "#/$defs/h0", "$defs": {**defs, f"h{hops}": {"items": {"$ref": "#/$defs/h0"}}}}
    assert Program(schema).errors(1) == []
    with pytest.raises(TooMuch):
        Program(schema).errors([1])


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (chain(DOUBLING["allOf"], 1000), "more than 250 schemas within each other"),
        ({"allOf": [{"required": [f"{n}"]} for n in range(3001)]}, "applies more than 3000 schemas"),
        ({"properties": {f"p{n}": {} for n in range(5000)}}, "more than 5000 objects"),
        (chain(lambda next_: {"allOf": [next_, next_], "unevaluatedProperties": False}, 40), "expands too far"),
        ({"properties": {"x": nested(150, {})}}, "nested more than 100 deep"),
        ({"enum": list(range(100_001))}, "more than 100000 values"),
        ({"allOf": [{"$ref": "#"}]}, "itself endlessly"),
        ({"patternProperties": {"^(?!a)": {}}, "additionalProperties": False}, "a pattern for names is not linear"),
        ({"properties": {"x": {"$ref": "https://example.com/a"}}}, "is not valid"),
        ({"$ref": "https://example.com/a"}, "refers to nothing in its own document"),
        ({"properties": {"x": {"$ref": "#/$defs/Nowhere"}}}, "is not valid"),
        ({"properties": {"x": {"$id": "https://example.com/a"}}}, "its own address"),
        ({"type": "objekt"}, "is not valid"),
        ({"properties": {"x": {1: "y"}}}, "a name that is not a string"),
    ],
)
def test_a_schema_without_a_bound_is_not_checked_and_says_why(schema: dict[str, Any], why: str) -> None:
    with pytest.raises(Unchecked, match=why):
        Program(schema)
    assert why in (schema_fault(schema) or "")
    assert prepare(tool(schema), {"x": "y"}).faults == []
    assert check_output(tool({}, schema), {"x": "y"}) is None


def test_a_pattern_is_linear_wherever_it_stands() -> None:
    slow, text = "^(a|aa)+$", "a" * 80 + "!"
    dialect = "http://json-schema.org/draft-07/schema#"
    schemas: list[tuple[dict[str, Any], Any]] = [
        ({"properties": {"x": {"pattern": slow}}}, {"x": text}),
        ({"properties": {"x": {"$schema": dialect, "pattern": slow}}}, {"x": text}),
        ({"patternProperties": {slow: {}}, "additionalProperties": False}, {text: 1}),
        ({"patternProperties": {slow: {}}, "unevaluatedProperties": False}, {text: 1}),
        ({"propertyNames": {"pattern": slow}}, {text: 1}),
    ]
    for schema, value in schemas:
        (fault,) = prepare(tool(schema), value).faults
        assert check_output(tool({}, schema), value) == fault


def test_a_pattern_that_is_not_linear_is_left_out_and_nothing_else() -> None:
    schema = {"properties": {"x": {"type": "string", "pattern": "^(?!a)"}, "y": {"type": "integer"}}}
    assert prepare(tool(schema), {"x": "a", "y": 1}).faults == []
    assert prepare(tool(schema), {"x": 1}).faults == ["x: expected string, got 1"]
    assert list(Program(schema).left_out) == ["^(?!a)"]
    assert schema["properties"]["x"]["pattern"] == "^(?!a)"


def test_a_large_pattern_is_counted_by_the_characters_it_is_held_against() -> None:
    program = Program({"pattern": "(a|b)*a(a|b){1000}"})
    assert program.errors("ab" * 200) is not None
    with pytest.raises(TooMuch):
        program.errors("ab" * 2_000)


def test_patterns_of_one_schema_share_a_room() -> None:
    for pattern in ("^[^/]{{1,60}}{}$", r"^\s\s\s\s\s\s\s\s\s\s{}$"):
        program = Program({"properties": {f"p{n}": {"pattern": pattern.format(n)} for n in range(40)}})
        assert 0 < len(program.left_out) < 40 and program.weight < 3 << 20


def test_faults_of_a_large_value_are_not_worded_one_by_one() -> None:
    program = Program({"items": {"type": "string"}})
    assert len(program.errors([1] * 100) or []) == 100
    many = [1] * MOST_WORDED
    assert program.errors(many) is None
    output = tool({}, {"items": {"type": "string"}})
    assert check_output(output, many) == "structured content: does not fit the schema and is too large to say where"
    assert check_output(tool({}, {"type": "object"}), {"x": nested(101)}) == (
        "structured content: nested more than 100 deep"
    )


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"x": nested(101)}, "nested more than 100 deep"),
        ({"x": {1: 2}}, "a name that is not a string"),
        ({"x": "\ud800"}, "lone surrogate"),
    ],
)
def test_what_json_cannot_hold_is_a_fault_and_reaches_no_server(value: Any, said: str) -> None:
    (fault,) = prepare(tool({"type": "object"}), value).faults
    assert said in fault


def test_what_is_kept_of_compiled_schemas_has_a_bound() -> None:
    room = 1 << 20
    programs = Programs(room)
    schemas = [{"properties": {f"p{n}": {"type": "string"} for n in range(20)}} for _ in range(50)]
    for schema in schemas:
        assert programs.get(schema, subject="s/t") is not None
        assert programs.weight <= room
    kept = programs.get(schemas[-1], subject="s/t")
    assert kept is programs.get(schemas[-1], subject="s/t")


class Sent(dict[str, Any]):
    """A schema that can be watched."""


def test_a_schema_that_is_used_once_is_not_kept() -> None:
    schema = Sent(type="object", required=["n"])
    assert check_value(schema, {}, subject="s/elicit") == ["missing required 'n'"]
    watched = weakref.ref(schema)
    del schema
    gc.collect()
    assert watched() is None


def test_the_types_for_verl_are_found_once_for_each_reference() -> None:
    schema = {"properties": {"x": chain(DOUBLING["anyOf"], 0)}, "$defs": chain(DOUBLING["anyOf"], 40)["$defs"]}
    assert verl_parameters(schema)["properties"]["x"]["type"] == "string"
    schema = {"properties": {"x": {"$ref": "#/$defs/l0"}}, "$defs": chain(DOUBLING["anyOf"], 900)["$defs"]}
    assert "x" in verl_parameters(schema)["properties"]


HOSTILE = """
import resource
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
from test_schema_bounds import DOUBLING, chain, check_output, nested, tool, verl_parameters
from mcp_rollout.gateway.schemas.arguments import prepare

start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
again = {"properties": {"a": {"$ref": "#"}}}
schemas = [chain(doubling, length) for doubling in DOUBLING.values() for length in (3, 12, 600)]
schemas += [chain(lambda next_: {"allOf": [next_, next_], "unevaluatedItems": next_}, length) for length in (6, 30)]
schemas += [{"anyOf": [again] * 2}, {"anyOf": [again] * 40}, {"items": {"allOf": [{"$ref": "#"}] * 3}}]
slow = ("^(a|aa)+$", "(a|b)*a(a|b){1000}", "^(a*)*b")
schemas += [{"additionalProperties": {"pattern": pattern}} for pattern in slow]
schemas += [{"allOf": [{"required": [str(n)]} for n in range(1900)]}, {"items": {"uniqueItems": True}}]
values = [{}, nested(20), nested(21), nested(99), nested(500), {"a": "ab" * 50_000}, {"a": list(range(20_000))}]
for schema in schemas:
    for value in values:
        definition = tool(schema, schema)
        prepare(definition, value), check_output(definition, value), prepare(definition, {"a": value})
    verl_parameters({"properties": {"x": {"$ref": "#/$defs/l0"}}, "$defs": schema.get("$defs", {})})
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start) >> 10)
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_CPU"), reason="counts CPU time")
def test_no_schema_and_no_value_takes_more_than_it_may() -> None:
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {here!r})\n{HOSTILE}"]
    grown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert int(grown.splitlines()[-1]) < 300  # MiB
