"""Arguments that the gateway fills in: gone from what the policy sees, there in what is checked and sent."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer

from gateway import ConfigError, Gateway, GatewayConfig, ToolDefinition
from gateway.catalogue.overrides import select_tools
from gateway.config.models import ServerConfig
from gateway.schemas.check import check_arguments, check_value
from gateway.schemas.coerce import coerce
from gateway.schemas.fixed import without
from gateway.types import canonical_json

Config = Callable[..., GatewayConfig]

PROPERTIES: dict[str, Any] = {
    "root": {"enum": ["/a", "/b"]},
    "path": {"type": "string"},
    "mode": {"enum": ["r", "w"]},
    "size": {"type": "integer"},
}
ROOT_IS_B = {"properties": {"root": {"const": "/b"}}}
ROOT_IS_A = {"properties": {"root": {"const": "/a"}}}
CONDITIONS: list[dict[str, Any]] = [
    {"required": ["root", "path"]},
    {"dependentRequired": {"path": ["root", "mode"]}},
    {"dependentRequired": {"root": ["path"]}},
    {"dependencies": {"root": ["path"], "path": ["root"]}},
    {"dependentSchemas": {"root": {"required": ["size"]}, "path": {"required": ["root", "mode"]}}},
    {"anyOf": [{"required": ["root"]}, {"required": ["path"]}]},
    {"anyOf": [{"required": ["root", "size"]}, {"required": ["path"]}]},
    {"oneOf": [{"required": ["root"]}, {"required": ["path"]}]},
    {"oneOf": [{**ROOT_IS_A, "required": ["path"]}, {**ROOT_IS_B, "required": ["size"]}]},
    {"allOf": [{"required": ["root"]}, {"required": ["mode"]}]},
    {"if": {"required": ["path"]}, "then": {"required": ["root", "mode"]}, "else": {"required": ["size"]}},
    {"if": ROOT_IS_A, "then": {"required": ["path"]}, "else": {"required": ["size"]}},
    {"if": ROOT_IS_B, "then": {"required": ["path"]}, "else": {"required": ["size"]}},
    {"not": {"required": ["root", "path"]}},
    {"minProperties": 2, "maxProperties": 3},
    {"allOf": [{"$ref": "#/$defs/Base"}], "$defs": {"Base": {"required": ["root", "path"]}}},
    {"$ref": "#/$defs/Base", "$defs": {"Base": {"anyOf": [{"$ref": "#/$defs/B"}], "minProperties": 1}, "B": ROOT_IS_A}},
    {"default": {"root": "/a", "path": "x"}, "examples": [{"root": "/a"}]},
    {"unevaluatedProperties": False, "allOf": [{"properties": {"more": {}}}]},
]


def tool(schema: dict[str, Any], name: str = "open") -> ToolDefinition:
    return ToolDefinition(server="world", name=name, exposed_name=name, description="", input_schema=schema)


def fix(schema: dict[str, Any], fixed: dict[str, Any]) -> ToolDefinition:
    config = ServerConfig.model_validate({"command": "x", "tools": {"change": {"open": {"fixed": fixed}}}})
    (found,) = select_tools("world", config, [tool(schema)])
    return found


def calls() -> list[dict[str, Any]]:
    values = {"path": "x", "mode": "r", "size": 3, "more": 1}
    names = itertools.chain.from_iterable(itertools.combinations(values, n) for n in range(5))
    return [{name: values[name] for name in chosen} for chosen in names]


@pytest.mark.parametrize("condition", CONDITIONS)
def test_the_policy_sees_a_schema_that_asks_of_it_just_what_the_servers_does(condition: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": PROPERTIES, **condition}
    found = fix(schema, {"root": "/a"})
    assert '"root"' not in canonical_json(found.input_schema)
    allowed = 0
    for given in calls():
        by_the_server = not check_value(schema, {**given, "root": "/a"}, subject="server")
        assert (not check_value(found.input_schema, given, subject="policy")) == by_the_server, given
        assert (not check_arguments(found, given, fixed={"root": "/a"})) == by_the_server, given
        allowed += by_the_server
    assert allowed


@pytest.mark.parametrize(
    ("condition", "value", "said"),
    [
        ({"enum": [{"root": "/a"}]}, "/a", "argument 'root' cannot be hidden: its schema names it under 'enum'"),
        ({"anyOf": [{"const": {"root": "/a"}}, {}]}, "/a", "names it under 'const'"),
        ({"propertyNames": {"enum": ["root", "path"]}}, "/a", "names it under 'propertyNames'"),
        ({"allOf": [{"required": ["root"]}, {"$ref": "#"}]}, "/a", "the schema refers to itself"),
        ({"allOf": [ROOT_IS_B]}, "/a", "no call with this value is allowed"),
        ({"not": {"required": ["root"]}}, "/a", "no call with this value is allowed"),
        (
            {"properties": {**PROPERTIES, "root": {}}, "if": {"properties": {"root": {"const": "another"}}}},
            "${trajectory.id}",
            "depends on a value that differs between trajectories",
        ),
    ],
)
def test_what_cannot_be_hidden_stops_the_start_with_tool_and_argument(
    condition: dict[str, Any], value: str, said: str
) -> None:
    schema = {"type": "object", "properties": PROPERTIES, **condition}
    with pytest.raises(ConfigError) as caught:
        fix(schema, {"root": value})
    assert said in str(caught.value) and "servers.world.tools.change.open.fixed" in str(caught.value)
    assert "open" in str(caught.value) and "root" in str(caught.value)


def test_a_schema_that_says_no_more_about_it_stays_as_it_was_sent() -> None:
    schema = {"type": "object", "properties": {**PROPERTIES, "root": {"$ref": "#/$defs/R"}}, "$defs": {"R": {}}}
    others = {name: own for name, own in PROPERTIES.items() if name != "root"}
    assert without(schema, {"root": "/a"}) == {"type": "object", "properties": others}
    fanning = {f"l{n}": {"allOf": [{"$ref": f"#/$defs/l{n + 1}"}] * 2} for n in range(40)}
    schema = {"properties": PROPERTIES, "$ref": "#/$defs/l0", "$defs": {**fanning, "l40": {"required": ["root"]}}}
    with pytest.raises(ConfigError, match="expands too far"):
        fix(schema, {"root": "/a"})


def test_no_message_tells_what_is_filled_in() -> None:
    schema = {"properties": PROPERTIES, "anyOf": [{"required": ["path"]}, {"required": ["size"]}], "maxProperties": 2}
    found = fix({**schema, "additionalProperties": False}, {"root": "/a"})
    for given in ({}, {"path": "x", "size": 1}, {"pth": "x", "size": 1}):
        faults = check_arguments(found, given, fixed={"root": "/a"})
        assert faults and all("/a" not in fault and "root" not in fault for fault in faults)
    assert check_arguments(found, {"root": "/a"}, fixed={"root": "/a"}) == ["unknown 'root'"]


def test_near_misses_are_mended_beside_what_is_filled_in() -> None:
    found = fix({"properties": PROPERTIES, "required": ["root", "size"]}, {"root": "/a"})
    mended = coerce(found, {"size": "3"}, fixed={"root": "/a"})
    assert mended is not None and mended.arguments == {"size": 3} and mended.changes == {"size": 3}


@pytest.mark.anyio
async def test_a_tool_whose_schema_ties_arguments_to_a_fixed_one_can_be_called(config: Config) -> None:
    server = MCPServer("world", log_level="ERROR")

    @server.tool(name="open", structured_output=False)
    def open_file(path: str = "", root: str = "") -> str:
        return f"{root}/{path}"

    listed = server._tool_manager.get_tool("open")  # pyright: ignore[reportPrivateUsage]
    assert listed is not None
    listed.parameters = {
        "type": "object",
        "properties": {"path": {"type": "string"}, "root": {"type": "string"}},
        "dependentRequired": {"path": ["root"]},
        "anyOf": [{"required": ["root"]}, {"required": ["path"]}],
    }
    entry = {"factory": "unused:unused", "tools": {"change": {"open": {"fixed": {"root": "${trajectory.id}"}}}}}
    gate = Gateway(config(world=entry), connect=lambda *_: server)
    async with gate, gate.lease(trajectory="t1", task=None, seed=0) as session:
        assert (await session.call("open", {"path": "x"})).text == "t1/x"
        assert (
            await session.call("open", {"path": 3})
        ).text == "Invalid arguments for open: path: expected string, got 3"
        assert (await session.call("open", {"root": "y"})).text == "Invalid arguments for open: unknown 'root'"
