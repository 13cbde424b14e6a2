"""What an entry says about its tools is what the policy sees, and what the server is sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mcp.server.mcpserver import Context, MCPServer

from mcp_rollout import ConfigError, Gateway, GatewayConfig, ToolDefinition, load_servers
from mcp_rollout.gateway.catalogue.names import expose
from mcp_rollout.gateway.catalogue.overrides import select_tools, without
from mcp_rollout.gateway.config.models import ServerConfig
from mcp_rollout.gateway.errors import faults_of
from mcp_rollout.gateway.types import Role

pytestmark = pytest.mark.anyio
Entry = Callable[..., dict[str, Any]]
Config = Callable[..., GatewayConfig]

PATHS = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "root": {"$ref": "#/$defs/Root"},
        "seed": {"type": "integer"},
        "size": {"$ref": "#/$defs/Size"},
    },
    "required": ["root", "path"],
    "$defs": {"Root": {"enum": ["/a", "/b"]}, "Size": {"$ref": "#/$defs/Unit"}, "Unit": {"type": "integer"}},
}


def tool(name: str, server: str = "world", **more: Any) -> ToolDefinition:
    fields = {"exposed_name": name, "description": f"{name}.", "input_schema": {"type": "object"}, **more}
    return ToolDefinition(server=server, name=name, **fields)


def select(tools: Any, *definitions: ToolDefinition, **more: Any) -> dict[str, ToolDefinition]:
    config = ServerConfig.model_validate({"command": "x", "tools": tools, **more})
    return {found.name: found for found in select_tools("world", config, definitions)}


FILES = (tool("read_file"), tool("read_dir"), tool("write_file"), tool("reset", role=Role.RESET))


@pytest.mark.parametrize(
    ("tools", "left"),
    [
        (None, ["read_file", "read_dir", "write_file"]),
        ([], []),
        (["read_dir"], ["read_dir"]),
        (["read_*", "write_file"], ["read_file", "read_dir", "write_file"]),
        ({"deny": ["*_file"]}, ["read_dir"]),
        ({"allow": ["read_*"], "deny": ["read_file"]}, ["read_dir"]),
        ({"allow": ["*"], "deny": ["delete_*"]}, ["read_file", "read_dir", "write_file"]),
        ({"deny": ["*"]}, []),
    ],
)
def test_allow_and_deny_choose_by_name_or_glob_and_never_touch_the_harness(tools: Any, left: list[str]) -> None:
    assert list(select(tools, *FILES)) == [*left, "reset"]


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        (["raed_*"], "servers.world.tools: the server has no tool that matches 'raed_*' (its tools: read_dir, re"),
        (["READ_FILE"], "servers.world.tools: the server has no tool 'READ_FILE'"),
        ({"deny": ["delete_file"]}, "servers.world.tools.deny: the server has no tool 'delete_file'"),
        ({"change": {"raed_file": {}}}, "servers.world.tools.change: the server has no tool 'raed_file'"),
        ({"change": {"read_file": {"fixed": {"x": 1}}}}, "change.read_file.fixed: read_file has no argument 'x' (its"),
        ({"change": {"read_*": {"fixed": {"x": 1}}}}, "change.read_*.fixed: no tool that it matches has an arg"),
    ],
)
def test_what_matches_nothing_is_one_clear_error(tools: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        select(tools, *FILES)
    assert said in str(caught.value)


def test_every_pattern_and_fixed_argument_that_matches_nothing_is_reported() -> None:
    tools = {"allow": ["read_*", "raed_file"], "deny": ["delete_file"], "change": {"raed_dir": {}}}
    with pytest.raises(ConfigError) as caught:
        select(tools, *FILES, roles={"score": "judge"})
    keys = [fault.key for fault in faults_of(caught.value)]
    assert keys == [
        "servers.world.tools",
        "servers.world.tools.deny",
        "servers.world.tools.change",
        "servers.world.roles",
    ]
    fixed = {"read_file": {"fixed": {"x": 1, "y": 2}}, "read_dir": {"fixed": {"z": 3}}}
    with pytest.raises(ConfigError) as caught:
        select({"change": fixed}, *FILES)
    said = [fault.problem for fault in faults_of(caught.value)]
    assert said == [
        "read_file has no argument 'x'",
        "read_file has no argument 'y'",
        "read_dir has no argument 'z'",
    ]


def test_a_tool_is_renamed_and_described_anew_and_called_by_its_own_name() -> None:
    change = {"read_file": {"name": "open", "description": "Opens."}}
    (found,) = select({"allow": ["read_file"], "change": change}, tool("read_file"), tool("x")).values()
    assert (found.name, found.exposed_name, found.description) == ("read_file", "open", "Opens.")


def test_fixed_arguments_leave_the_schema_with_all_that_only_they_needed() -> None:
    fixed = {"change": {"open": {"fixed": {"root": "/a", "seed": "${trajectory.seed}"}}}}
    found = select(fixed, tool("open", input_schema=PATHS))["open"]
    assert found.input_schema == {
        "type": "object",
        "properties": {"path": {"type": "string"}, "size": {"$ref": "#/$defs/Size"}},
        "required": ["path"],
        "$defs": {"Size": {"$ref": "#/$defs/Unit"}, "Unit": {"type": "integer"}},
    }
    assert found.fixed == {"root": "/a", "seed": "${trajectory.seed}"}


def test_a_schema_loses_nothing_that_is_still_needed() -> None:
    assert without(PATHS, {}) == PATHS
    recursive = {**PATHS, "properties": {"x": {"$ref": "#"}, "y": {}}}
    assert without(recursive, {"y": 1})["$defs"] == PATHS["$defs"]


def test_a_fixed_value_that_does_not_fit_is_refused_without_being_quoted() -> None:
    with pytest.raises(ConfigError, match="open's schema refuses the value of 'root'") as caught:
        select({"change": {"open": {"fixed": {"root": "hunter2"}}}}, tool("open", input_schema=PATHS))
    assert "hunter2" not in str(caught.value)


def test_a_glob_fixes_an_argument_wherever_it_is_one() -> None:
    tools = {"change": {"*": {"fixed": {"seed": 3}}, "open": {"fixed": {"seed": 4}}}}
    found = select(tools, tool("open", input_schema=PATHS), tool("list", input_schema=PATHS), tool("help"))
    assert [found[name].fixed for name in ("open", "list", "help")] == [{"seed": 4}, {"seed": 3}, {}]


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ({"change": {"read_*": {"name": "open"}}}, "change.read_*: only `fixed` can be given for several tools"),
        ({"change": {"open": {"name": "op en"}}}, "tools.change.open.name"),
        ({"alow": ["x"]}, "did you mean 'allow'?"),
        ({"change": {"open": {"fixed": {"x": "${NO_SUCH}"}}}}, "w.tools.change.open.fixed.x: environment variable"),
        ({"change": {"open": {"fixed": "hunter2"}}}, "w.tools.change.open.fixed"),
    ],
)
def test_a_wrong_selection_is_one_message_with_its_key(tmp_path: Path, tools: Any, said: str) -> None:
    path = tmp_path / "servers.json"
    path.write_text(json.dumps({"mcpServers": {"w": {"command": "x", "tools": tools}}}))
    with pytest.raises(ConfigError) as caught:
        load_servers(path)
    assert said in str(caught.value) and "hunter2" not in str(caught.value)


def test_only_fixed_arguments_take_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER_ID", "u1")
    fixed = {"user": "${USER_ID}/${trajectory.id}"}
    tools = {"change": {"open": {"description": "Costs ${price}.", "fixed": fixed}}}
    path = tmp_path / "servers.json"
    path.write_text(json.dumps({"mcpServers": {"w": {"command": "x", "tools": tools}}}))
    change = load_servers(path).servers["w"].tools.change["open"]
    assert (change.description, change.fixed) == ("Costs ${price}.", {"user": "u1/${trajectory.id}"})


def names(*catalogue: ToolDefinition, prefixed: tuple[str, ...] = ()) -> dict[tuple[str, str], str]:
    servers: dict[str, tuple[ToolDefinition, ...]] = {}
    for found in catalogue:
        servers[found.server] = (*servers.get(found.server, ()), found)
    exposed = expose(servers, prefixed=prefixed)
    return {(found.server, found.name): found.exposed_name for tools in exposed.values() for found in tools}


def test_a_prefix_stands_where_two_servers_share_a_name_and_nowhere_else() -> None:
    found = names(tool("read", "a"), tool("read", "b"), tool("write", "b"), tool("read", "c", role=Role.RESET))
    assert found == {("a", "read"): "a__read", ("b", "read"): "b__read", ("b", "write"): "write", ("c", "read"): "read"}


def test_a_prefix_can_be_made_mandatory_for_a_server() -> None:
    found = names(tool("read", "a"), tool("write", "b"), prefixed=("a",))
    assert found == {("a", "read"): "a__read", ("b", "write"): "write"}


def test_a_renamed_tool_collides_by_its_new_name() -> None:
    found = names(tool("open", "a", exposed_name="read"), tool("read", "b"))
    assert found == {("a", "open"): "a__read", ("b", "read"): "b__read"}


def test_a_server_that_takes_anothers_prefixed_name_only_gets_a_prefix_itself() -> None:
    found = names(tool("read", "a"), tool("read", "b"), tool("a__read", "b"))
    assert found == {("a", "read"): "a__read", ("b", "read"): "b__read", ("b", "a__read"): "b__a__read"}


def test_names_that_even_prefixes_do_not_tell_apart_are_refused_with_their_owners() -> None:
    with pytest.raises(ConfigError, match=r"a\.b/x, a b/x would all be called 'a_b__x'"):
        names(tool("x", "a.b"), tool("x", "a b"))


def recorder(name: str, said: list[Any]) -> MCPServer:
    server = MCPServer(name)

    @server.tool()
    def read(path: str, ctx: Context, root: str = "/", seed: int = 0, user: str = "") -> str:
        """Reads."""
        said.append([name, path, root, seed, user])
        return name

    @server.tool(meta={"mcp-rollout/role": "reset"})
    def reset(task: str, seed: int, root: str = "/") -> dict[str, Any]:
        """Resets."""
        said.append(["reset", task, seed, root])
        return {}

    return server


async def test_a_call_reaches_the_server_it_names_with_the_fixed_arguments_filled_in(config: Config) -> None:
    said: list[Any] = []
    servers = {name: recorder(name, said) for name in ("one", "two")}
    fixed = {"root": "/one", "seed": "${trajectory.seed}", "user": "u-${trajectory.id}-${trajectory.seed}"}
    one = {"factory": "x:x", "tools": {"change": {"read": {"fixed": fixed}, "reset": {"fixed": {"root": "/r"}}}}}
    gate = Gateway(config(one=one, two={"factory": "x:x"}), connect=lambda _, name: servers[name])
    async with gate, gate.lease(trajectory="t7", task="task", seed=7) as session:
        assert sorted(session.tools) == ["one__read", "two__read"]
        assert list(session.tools["one__read"].input_schema["properties"]) == ["path"]
        assert (await session.call("two__read", {"path": "b"})).text == "two"
        assert (await session.call("one__read", {"path": "a"})).text == "one"
        for guess in ("root", "seed"):
            refused = await session.call("one__read", {"path": "a", guess: "x"})
            assert refused.is_error and f"unknown '{guess}'" in refused.text
        assert (await session.call("read", {"path": "a"})).is_error
    assert sorted(said[:2]) == [["reset", "task", 7, "/"], ["reset", "task", 7, "/r"]]
    assert said[2:] == [["two", "b", "/", 0, ""], ["one", "a", "/one", 7, "u-t7-7"]]


async def test_tools_on_every_page_are_listed(mini: Entry, config: Config) -> None:
    listed = ["echo", "put", "get", "pid", "meta"]  # the server has two on a page
    async with Gateway(config(world=mini(*listed))) as gate:
        assert [found.name for found in gate.catalogue["world"]] == listed


async def test_a_list_without_an_end_is_read_once(config: Config) -> None:
    from mcp.server.lowlevel import Server
    from mcp_types import ListToolsResult, Tool

    pages: list[str | None] = []

    async def page(_: Any, params: Any) -> ListToolsResult:
        cursor = params.cursor if params else None
        pages.append(cursor)
        found = Tool(name=f"tool_{len(pages)}", input_schema={"type": "object"})
        return ListToolsResult(tools=[found], next_cursor="again")

    gate = Gateway(config(world={"factory": "x:x"}), connect=lambda _, __: Server("w", on_list_tools=page))
    async with gate:
        assert pages == [None, "again"] and len(gate.catalogue["world"]) == 2
