"""What a server has besides tools is offered as tools of the gateway's making, in both protocol eras."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mcp_types as mcp
import pytest
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.prompts.base import AssistantMessage, UserMessage

from mcp_rollout import ConfigError, Gateway, GatewayConfig
from mcp_rollout.gateway.catalogue.tool_config import check_lock, lock_entries, read_lock, write_lock
from mcp_rollout.gateway.errors import ProtocolError
from mcp_rollout.gateway.types import ContentKind

pytestmark = pytest.mark.anyio
Config = Callable[..., GatewayConfig]
ALL = ["instructions", "resources", "prompts"]
PIXEL = b"\x89PNG"


def library() -> MCPServer:
    server = MCPServer("library", instructions="Whisper.")

    @server.resource("book://rules", description="What holds here.", mime_type="text/plain")
    def rules() -> str:
        return "No shouting."

    @server.resource("book://{title}/cover", mime_type="image/png")
    def cover(title: str) -> bytes:
        return PIXEL

    @server.prompt(description="How to greet.")
    def greet(who: str, how: str = "kindly") -> str:
        return f"Greet {who} {how}."

    @server.prompt()
    def talk() -> list[Any]:
        return [UserMessage("Hello."), AssistantMessage("Hush.")]

    @server.tool()
    def list_resources() -> str:
        """A tool with a name that anybody would take."""
        return "its own"

    return server


async def test_resources_prompts_and_instructions_are_offered_as_tools_beside_the_servers_own(config: Config) -> None:
    server = library()
    gate = Gateway(config(library={"factory": "x:x", "tools": {"offer": ALL}}), connect=lambda _, __: server)
    async with gate, gate.lease(trajectory="t", task="x", seed=1) as session:
        assert set(session.tools) == {
            "list_resources",
            "library__get_instructions",
            "library__list_resources",
            "library__read_resource",
            "library__list_prompts",
            "library__get_prompt",
        }
        assert (await session.call("list_resources", {})).text == "its own"
        assert (await session.call("library__get_instructions", {})).text == "Whisper."
        listed = (await session.call("library__list_resources", {})).text.splitlines()
        assert "book://rules: What holds here. (text/plain)" in listed
        assert any(line.startswith("book://{title}/cover: ") for line in listed)
        assert (await session.call("library__read_resource", {"uri": "book://rules"})).text == "No shouting."
        (image,) = (await session.call("library__read_resource", {"uri": "book://emma/cover"})).content
        assert (image.kind, image.data, image.mime_type) == (ContentKind.IMAGE, PIXEL, "image/png")
        prompts = (await session.call("library__list_prompts", {})).text
        assert "greet: How to greet.\n  who (required)\n  how (optional)" in prompts
        got = await session.call("library__get_prompt", {"name": "greet", "arguments": {"who": "Emma"}})
        assert got.text == "Greet Emma kindly."
        said = await session.call("library__get_prompt", {"name": "talk"})
        assert said.text == "user: Hello.\nassistant: Hush."


async def test_what_is_not_there_is_the_policys_mistake_and_not_a_broken_world(config: Config) -> None:
    server = library()
    gate = Gateway(config(library={"factory": "x:x", "tools": {"offer": ALL}}), connect=lambda _, __: server)
    async with gate, gate.lease(trajectory="t", task="x", seed=1) as session:
        for name, arguments in {
            "library__read_resource": {"uri": "book://nowhere"},
            "library__get_prompt": {"name": "nothing"},
        }.items():
            assert (await session.call(name, arguments)).is_error
        wrong = await session.call("library__read_resource", {"url": "book://rules"})
        assert wrong.is_error and "missing required 'uri'" in wrong.text


async def test_the_lock_pins_what_is_offered(config: Config, tmp_path: Path) -> None:
    server = library()
    gate = Gateway(config(library={"factory": "x:x", "tools": {"offer": ["resources"]}}), connect=lambda _, __: server)
    async with gate:
        write_lock(tmp_path / "lock.yaml", lock_entries(gate.catalogue, environment="x", source="x.yaml"))
        entries = read_lock(tmp_path / "lock.yaml")
        assert [entry.definition.name for entry in entries] == ["list_resources", "resources/list", "resources/read"]
        assert check_lock(entries, gate.catalogue) == []
    async with Gateway(config(library={"factory": "x:x"}), connect=lambda _, __: server) as without:
        differences = check_lock(entries, without.catalogue)
    assert len(differences) == 2 and differences[0].startswith("library/resources/list: in the lock")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("plain", r"servers.plain.tools.offer: the server has no instructions \(it has: prompts, resources\)"),
        ("taker", r"servers.taker.tools.offer: the server has a tool 'resources/read' of its own"),
    ],
)
async def test_what_cannot_be_offered_is_said_at_the_start(config: Config, name: str, said: str) -> None:
    server = MCPServer(name)
    server.add_tool(lambda: "x", name="resources/read" if name == "taker" else "read", description="x")
    offer = ["resources"] if name == "taker" else ALL
    gate = Gateway(config(**{name: {"factory": "x:x", "tools": {"offer": offer}}}), connect=lambda _, __: server)
    with pytest.raises(ConfigError, match=said):
        async with gate:
            pass


async def test_offered_tools_carry_the_trajectory(config: Config) -> None:
    server = MCPServer("world")

    @server.resource("world://{name}")
    def state(name: str, ctx: Context) -> str:
        return (ctx.request_context.meta or {})["mcp-rollout/trajectory"]

    gate = Gateway(config(world={"factory": "x:x", "tools": {"offer": ["resources"]}}), connect=lambda _, __: server)
    async with gate, gate.lease(trajectory="t9", task=None, seed=1) as session:
        assert (await session.call("world__read_resource", {"uri": "world://mine"})).text == "t9"


@pytest.mark.parametrize("kind", ["resources", "prompts"])
async def test_a_list_whose_pages_are_too_long_together_breaks_the_protocol(config: Config, kind: str) -> None:
    text, pages = "x" * 200_000, list[str | None]()

    def following(params: Any) -> str:
        pages.append(params.cursor if params else None)
        return str(len(pages))

    async def resources(_: Any, params: Any) -> mcp.ListResourcesResult:
        found = mcp.Resource(uri="book://rules", name=text)
        return mcp.ListResourcesResult(resources=[found], next_cursor=following(params))

    async def prompts(_: Any, params: Any) -> mcp.ListPromptsResult:
        return mcp.ListPromptsResult(prompts=[mcp.Prompt(name=text)], next_cursor=following(params))

    server = Server("library", on_list_resources=resources, on_list_prompts=prompts)
    entry = {"factory": "x:x", "tools": {"offer": [kind]}, "max_message_bytes": 1_000_000}
    gate = Gateway(config(library=entry), connect=lambda _, __: server)
    async with gate, gate.lease(trajectory="t", task="x", seed=1) as session:
        with pytest.raises(ProtocolError, match=r"the list has more than max_message_bytes \(1000000\)"):
            await session.call(f"library__list_{kind}", {})
    assert len(pages) == 5
