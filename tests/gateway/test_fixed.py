"""Arguments that the gateway fills in: gone from what the policy sees, there in what is checked and sent."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer

from mcp_rollout import ConfigError, Gateway, GatewayConfig, ToolDefinition
from mcp_rollout.gateway.catalogue.overrides import select_tools, without
from mcp_rollout.gateway.config.models import ServerConfig
from mcp_rollout.gateway.schemas.arguments import prepare
from mcp_rollout.gateway.schemas.check import check_value
from mcp_rollout.gateway.types import canonical_json

Config = Callable[..., GatewayConfig]

PROPERTIES: dict[str, Any] = {
    "root": {"enum": ["/a", "/b"]},
    "path": {"type": "string"},
    "mode": {"enum": ["r", "w"]},
    "size": {"type": "integer"},
}
SCHEMAS: list[dict[str, Any]] = [
    {},
    {"required": ["root", "path"]},
    {"required": ["root"]},
    {"default": {"root": "/a", "path": "x"}, "examples": [{"root": "/a"}, "odd"]},
    {"additionalProperties": False},
    {"properties": {**PROPERTIES, "root": {"$ref": "#/$defs/R"}}, "$defs": {"R": {"enum": ["/a"]}, "root": {}}},
]
CONDITIONS: list[dict[str, Any]] = [
    {"dependentRequired": {"path": ["root"]}},
    {"dependencies": {"root": ["path"]}},
    {"dependentSchemas": {"root": {"required": ["size"]}}},
    *({keyword: [{"required": ["root"]}]} for keyword in ("allOf", "anyOf", "oneOf")),
    {"if": {"required": ["path"]}, "then": {"required": ["root"]}},
    {"not": {"required": ["root", "path"]}},
    {"minProperties": 2},
    {"$ref": "#/$defs/Base", "$defs": {"Base": {"required": ["root"]}}},
    {"enum": [{"root": "/a"}]},
    {"propertyNames": {"enum": ["root", "path"]}},
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


@pytest.mark.parametrize("more", SCHEMAS)
def test_the_policy_sees_a_schema_that_asks_of_it_just_what_the_servers_does(more: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": PROPERTIES, **more}
    found = fix(schema, {"root": "/a"})
    assert '"root"' not in canonical_json(found.input_schema)
    allowed = 0
    for given in calls():
        by_the_server = not check_value(schema, {**given, "root": "/a"}, subject="server")
        assert (not check_value(found.input_schema, given, subject="policy")) == by_the_server, given
        assert (not prepare(found, given, fixed={"root": "/a"}).faults) == by_the_server, given
        allowed += by_the_server
    assert allowed


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_schema_that_relates_its_arguments_is_refused_with_tool_argument_and_keyword(
    condition: dict[str, Any],
) -> None:
    with pytest.raises(ConfigError) as caught:
        fix({"type": "object", "properties": PROPERTIES, **condition}, {"root": "/a"})
    keyword = sorted(condition.keys() - {"$defs", "then"})[0]
    assert f"open's argument 'root' cannot be hidden: the schema has '{keyword}' at its root" in str(caught.value)
    assert "servers.world.tools.change.open.fixed" in str(caught.value)


def test_definitions_that_only_a_fixed_argument_needs_are_removed_with_it() -> None:
    schema = {"type": "object", "properties": {**PROPERTIES, "root": {"$ref": "#/$defs/R"}}, "$defs": {"R": {}}}
    others = {name: own for name, own in PROPERTIES.items() if name != "root"}
    assert without(schema, {"root": "/a"}) == {"type": "object", "properties": others}


def test_no_message_mentions_a_fixed_argument() -> None:
    found = fix({"properties": PROPERTIES, "required": ["path"], "additionalProperties": False}, {"root": "/a"})
    for given in ({}, {"path": 1}, {"pth": "x", "size": 1}):
        faults = prepare(found, given, fixed={"root": "/a"}).faults
        assert faults and all("/a" not in fault and "root" not in fault for fault in faults)
    assert prepare(found, {"root": "/a"}, fixed={"root": "/a"}).faults == ["unknown 'root'"]


def test_strings_that_nearly_fit_are_coerced_beside_fixed_arguments() -> None:
    found = fix({"properties": PROPERTIES, "required": ["root", "size"]}, {"root": "/a"})
    prepared = prepare(found, {"size": "3"}, fixed={"root": "/a"})
    assert prepared.arguments == {"size": 3, "root": "/a"} and prepared.changes == {"size": 3}


@pytest.mark.anyio
async def test_a_call_carries_its_fixed_arguments_and_the_policy_cannot_give_them(config: Config) -> None:
    server = MCPServer("world", log_level="ERROR")

    @server.tool(name="open", structured_output=False)
    def open_file(path: str = "", root: str = "") -> str:
        return f"{root}/{path}"

    listed = server._tool_manager.get_tool("open")  # pyright: ignore[reportPrivateUsage]
    assert listed is not None
    listed.parameters = {
        "type": "object",
        "properties": {"path": {"type": "string"}, "root": {"type": "string"}},
        "required": ["root"],
    }
    entry = {"factory": "unused:unused", "tools": {"change": {"open": {"fixed": {"root": "${trajectory.id}"}}}}}
    gate = Gateway(config(world=entry), connect=lambda *_: server)
    async with gate, gate.lease(trajectory="t1", task=None, seed=0) as session:
        assert (await session.call("open", {"path": "x"})).text == "t1/x"
        assert (
            await session.call("open", {"path": 3})
        ).text == "Invalid arguments for open: path: expected string, got 3"
        assert (await session.call("open", {"root": "y"})).text == "Invalid arguments for open: unknown 'root'"
