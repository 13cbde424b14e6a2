"""What the policy can call, and what it reads when it calls wrongly."""

import json
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from clock import Clock
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, ImageContent, TextContent
from structlog.testing import capture_logs

from mcp_rollout import ConfigError, Gateway, GatewayConfig, ServerConfig
from mcp_rollout.gateway.errors import CallTimeout, HarnessError, ProtocolError
from mcp_rollout.gateway.types import ContentKind, Role
from mcp_rollout.mcp_servers.kit import InProcess

pytestmark = pytest.mark.anyio
IN_PROCESS = {"factory": "unused:unused", "required": True}
"""Represents a server that the test hands over through `connect`."""


def gateway(*servers: MCPServer, **entry: Any) -> Gateway:
    by_name = {server.name: server for server in servers}
    config = GatewayConfig.model_validate({"servers": {name: {**IN_PROCESS, **entry} for name in by_name}})
    return Gateway(config, connect=lambda _, name: SERVED["here"](by_name[name]))


SERVED: dict[str, Callable[[MCPServer], Any]] = {"here": lambda server: server}


@pytest.fixture(params=["served by the SDK", "served in lines", "served in lines, of an unknown mcp"], autouse=True)
def every_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test here runs over every way of calling a server in this process."""
    if request.param != "served by the SDK":
        monkeypatch.setitem(SERVED, "here", InProcess)
    if "unknown" in request.param:
        monkeypatch.setattr("mcp_rollout.gateway.sdk.is_known", False)
        monkeypatch.setattr("mcp_rollout.mcp_servers.kit.sdk.is_known", False)


async def test_results_come_back_in_every_kind_of_content() -> None:
    server = MCPServer("world")

    @server.tool()
    def look(n: int) -> CallToolResult:
        """Look."""
        return CallToolResult(
            content=[TextContent(text="a"), TextContent(text="b"), ImageContent(data="AAEC", mime_type="image/png")],
            structured_content={"n": n},
        )

    async with gateway(server) as gate, gate.lease(trajectory="t", task="", seed=1) as session:
        result = await session.call("look", {"n": 2})
    assert (result.structured, result.is_error) == ({"n": 2}, False)
    assert result.text == 'a\nb\n[image: image/png, 3 bytes]\n{"n": 2}'
    assert (result.content[2].kind, result.content[2].data) == (ContentKind.IMAGE, b"\x00\x01\x02")
    assert result.elapsed_s > 0


async def test_structured_content_without_text_is_shown_as_text() -> None:
    server = MCPServer("world")

    @server.tool()
    def look() -> CallToolResult:
        """Look."""
        return CallToolResult(content=[], structured_content={"n": 1})

    async with gateway(server) as gate, gate.lease(trajectory="t", task="", seed=1) as session:
        assert json.loads((await session.call("look", {})).text) == {"n": 1}


async def test_an_unknown_tool_is_told_to_the_policy_with_those_there_are() -> None:
    server = MCPServer("world")

    @server.tool()
    def look() -> str:
        """Look."""
        return "here"

    async with gateway(server) as gate, gate.lease(trajectory="t", task="", seed=1) as session:
        result = await session.call("lock", {})
    assert result.is_error and result.text == "Unknown tool 'lock'. Available tools: look"


async def test_wrong_arguments_never_reach_the_server() -> None:
    server, reached = MCPServer("world"), []

    @server.tool()
    def buy(item: str, count: int = 1) -> str:
        """Buy."""
        reached.append(item)
        return "bought"

    async with gateway(server) as gate, gate.lease(trajectory="t", task="", seed=1) as session:
        result = await session.call("buy", {"count": "two"})
        listed = await session.call("buy", ["ball"])
    assert result.is_error and reached == []
    assert 'count: expected integer, got "two"' in result.text and "missing required 'item'" in result.text
    assert "expected an object" in listed.text


async def test_a_tool_that_says_no_is_a_result_and_not_an_exception() -> None:
    server = MCPServer("world")

    @server.tool()
    def buy() -> str:
        """Buy."""
        raise ToolError("sold out")

    async with gateway(server) as gate, gate.lease(trajectory="t", task="", seed=1) as session:
        result = await session.call("buy", {})
    assert result.is_error and "sold out" in result.text


async def test_every_request_carries_trajectory_and_seed() -> None:
    server = MCPServer("world")

    @server.tool()
    def who(ctx: Context) -> dict[str, Any]:
        """Who."""
        meta = ctx.request_context.meta or {}
        return {key: meta[key] for key in meta if key.startswith("mcp-rollout/")}

    async with gateway(server) as gate, gate.lease(trajectory="t-7", task="", seed=41) as session:
        result = await session.call("who", {})
    assert result.structured == {"mcp-rollout/trajectory": "t-7", "mcp-rollout/seed": 41}


async def test_two_calls_of_one_session_are_in_flight_together() -> None:
    server, arrived = MCPServer("world"), {"a": anyio.Event(), "b": anyio.Event()}

    @server.tool()
    async def meet(mine: str, other: str) -> str:
        """Meet: returns only once the other call is here as well."""
        arrived[mine].set()
        await arrived[other].wait()
        return mine

    async with gateway(server) as gate, gate.lease(trajectory="t", task="", seed=1) as session:
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(session.call, "meet", {"mine": "a", "other": "b"})
                tasks.start_soon(session.call, "meet", {"mine": "b", "other": "a"})


async def test_harness_tools_are_not_shown_and_guessing_their_names_gets_unknown_tool() -> None:
    server = MCPServer("world")

    @server.tool(meta={"mcp-rollout/role": "reset"})
    def reset(task: str, seed: int) -> dict[str, Any]:
        """Reset."""
        return {}

    @server.tool()
    def look() -> str:
        """Look."""
        return "here"

    async with gateway(server) as gate:
        assert [tool.name for tool in gate.catalogue["world"]] == ["reset", "look"]
        async with gate.lease(trajectory="t", task="", seed=1) as session:
            guessed = await session.call("reset", {"task": "x", "seed": 1})
            assert list(session.tools) == ["look"]
        with pytest.raises(ConfigError, match="unknown tool 'reset'"):
            gate.lease(trajectory="t", task="", seed=1, tools=["reset"])
    assert guessed.is_error and guessed.text.startswith("Unknown tool 'reset'")


async def test_tools_of_one_name_on_two_servers_are_told_apart() -> None:
    def world(name: str) -> MCPServer:
        server = MCPServer(name)

        @server.tool()
        def look() -> str:
            """Look."""
            return name

        return server

    async with gateway(world("red"), world("blue")) as gate, gate.lease(trajectory="t", task="", seed=1) as session:
        assert list(session.tools) == ["red__look", "blue__look"]
        assert (await session.call("blue__look", {})).text == "blue"


async def test_a_row_may_select_tools_and_only_those_can_be_called() -> None:
    server = MCPServer("world")
    for name in ("look", "buy"):
        server.add_tool(lambda: "x", name=name, description=name)

    async with gateway(server) as gate:
        async with gate.lease(trajectory="t", task="", seed=1, tools=["buy"]) as session:
            assert list(session.tools) == ["buy"]
            assert (await session.call("look", {})).is_error
        with pytest.raises(ConfigError, match=r"unknown tool 'sell'.*available: look, buy"):
            gate.lease(trajectory="t", task="", seed=1, tools=["sell"])


async def test_an_entry_may_allow_tools_and_a_name_the_server_lacks_stops_the_start() -> None:
    server = MCPServer("world")
    for name in ("look", "buy"):
        server.add_tool(lambda: "x", name=name, description=name)

    async with gateway(server, tools=["look"]) as gate:
        assert [tool.name for tool in gate.catalogue["world"]] == ["look"]
    with pytest.raises(
        ConfigError, match=r"servers.world.tools: the server has no tool 'lok' \(its tools: buy, look\)"
    ):
        async with gateway(server, tools=["lok"]):
            pass


async def test_rewards_count_from_trusted_servers_only() -> None:
    server = MCPServer("world")

    @server.tool()
    def act() -> CallToolResult:
        """Act."""
        return CallToolResult(content=[], _meta={"mcp-rollout/reward": 0.5})

    async def reward(**entry: Any) -> float | None:
        async with gateway(server, **entry) as gate, gate.lease(trajectory="t", task="", seed=1) as session:
            return (await session.call("act", {})).reward

    assert await reward(trusted=True) == 0.5
    assert await reward() is None


async def test_structured_content_off_the_output_schema_is_a_protocol_error() -> None:
    server = MCPServer("world")

    @server.tool()
    def count() -> int:
        """Count."""
        return 3

    async with gateway(server) as gate:
        tool = gate.catalogue["world"][0]
        assert tool.output_schema is not None
        tool.output_schema["properties"]["result"]["type"] = "string"
        async with gate.lease(trajectory="t", task="", seed=1) as session:
            with pytest.raises(ProtocolError, match=r"world/count: .*result: expected string, got 3"):
                await session.call("count", {})


def add_hang_and_look(server: MCPServer, begun: anyio.Event) -> None:
    @server.tool()
    async def hang() -> str:
        """Hang."""
        begun.set()
        await anyio.sleep_forever()
        return ""

    @server.tool()
    def look() -> str:
        """Look."""
        return "here"


async def test_a_hung_tool_times_out_and_the_session_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    server, begun, clock = MCPServer("world"), anyio.Event(), Clock(monkeypatch)

    add_hang_and_look(server, begun)
    async with gateway(server, call_timeout_s=60) as gate, gate.lease(trajectory="t", task="", seed=1) as session:

        async def times_out() -> None:
            with pytest.raises(CallTimeout, match=r"world/hang: no answer within 60 s"):
                await session.call("hang", {})

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(times_out)
            await begun.wait()
            await clock.advance(60)
        assert (await session.call("look", {})).text == "here"


@pytest.mark.parametrize("is_busy", [True, False])
async def test_a_server_that_answers_calls_but_no_listing_is_busy_and_one_that_answers_nothing_hangs(
    monkeypatch: pytest.MonkeyPatch, is_busy: bool
) -> None:
    """A server that works through its calls one after another has a listing wait behind them."""
    asked, begun, clock = anyio.Event(), anyio.Event(), Clock(monkeypatch)

    class ListedOnce(MCPServer):
        async def list_tools(self) -> list[Any]:
            if begun.is_set():
                asked.set()
                await anyio.sleep_forever()
            return await super().list_tools()

    server = ListedOnce("world")

    add_hang_and_look(server, begun)
    async with gateway(server, call_timeout_s=60) as gate, gate.lease(trajectory="t", task="", seed=1) as session:

        async def times_out() -> None:
            with pytest.raises(CallTimeout):
                await session.call("hang", {})

        with capture_logs() as logs:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(times_out)
                await begun.wait()
                await clock.advance(60)
            await asked.wait()
            if is_busy:
                assert (await session.call("look", {})).text == "here"
            await clock.advance(60)
            await anyio.wait_all_tasks_blocked()
        assert [each["event"] for each in logs] == ([] if is_busy else ["connection.hung"])


async def test_a_question_from_inside_a_call_is_refused_by_name() -> None:
    server = MCPServer("world")

    @server.tool()
    async def ask(ctx: Context) -> str:
        """Ask."""
        from pydantic import BaseModel

        class Size(BaseModel):
            size: int

        return str(await ctx.elicit("Which size?", Size))

    async with gateway(server) as gate, gate.lease(trajectory="t", task="", seed=1) as session:
        refused = await session.call("ask", {})
        assert refused.is_error and "Cannot send 'elicitation/create'" in refused.text


async def test_invoke_calls_a_harness_tool_and_gives_its_object() -> None:
    server = MCPServer("world")

    @server.tool(meta={"mcp-rollout/role": "score"})
    def score(messages: list[dict[str, Any]]) -> dict[str, Any]:
        """Score."""
        if not messages:
            raise ToolError("nothing was said")
        return {"score": 1.0, "parts": {"said": float(len(messages))}}

    async with gateway(server) as gate, gate.lease(trajectory="t", task="", seed=1) as session:
        assert session.has(Role.SCORE, "world") and not session.has(Role.RESET, "world")
        scored = await session.invoke(Role.SCORE, {"messages": [{"role": "user"}]}, server="world")
        assert scored.structured == {"score": 1.0, "parts": {"said": 1.0}}
        with pytest.raises(HarnessError, match=r"score was refused: .*nothing was said"):
            await session.invoke(Role.SCORE, {"messages": []}, server="world")
        with pytest.raises(HarnessError, match="has no reply tool"):
            await session.invoke(Role.REPLY, {"seq": 1, "message": ""}, server="world")


async def test_a_factory_is_found_by_name_and_a_wrong_one_is_a_config_error(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "from mcp.server.mcpserver import MCPServer\ncreate = lambda: MCPServer('x', instructions='Be kind.')\n"
    (tmp_path / "a_world.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)

    def config(factory: str, *, required: bool = True) -> GatewayConfig:
        return GatewayConfig(servers={"world": ServerConfig(factory=factory, required=required)})

    async with Gateway(config("a_world:create")) as gate:
        assert gate.instructions == {"world": "Be kind."}
    with pytest.raises(ConfigError, match=r"servers.world.factory: a_world has no function 'make'"):
        async with Gateway(config("a_world:make")):
            pass
    async with Gateway(config("a_world:make", required=False)) as gate:
        assert "a_world has no function 'make'" in str(gate.failures["world"])
