"""What servers and MCP clients say to each other passes through `serve`, in both protocol eras."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import mcp_types as mcp
import pytest
from mcp import Client, MCPError
from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel
from raw_clients import raw_server
from served import served
from serving import serving as listening_server

from mcp_rollout import Gateway, GatewayConfig
from mcp_rollout.gateway.serve.app import Serving, serving
from mcp_rollout.gateway.serve.config import ServeConfig

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")]
MODERN = "2026-07-28"
ERAS = ["legacy", MODERN]
SERVER = str(Path(__file__).parents[2] / "support" / "asking_client_server.py")
TELLING = str(Path(__file__).parents[2] / "support" / "one_era_server.py")
KEY = "planted-key-0123456789"


class Name(BaseModel):
    name: str


@pytest.fixture(scope="module")
async def asker() -> AsyncIterator[str]:
    """The address of a server that all tests share."""
    async with raw_server([SERVER]) as port:
        yield f"http://127.0.0.1:{port}/mcp"


@asynccontextmanager
async def serving_it(address: str, answer_s: float = 600) -> AsyncIterator[Serving]:
    made = GatewayConfig.model_validate({"servers": {"asker": {"url": address, "required": True}}})
    async with served(made, answer_s=answer_s) as running:
        yield running


async def elicited(context: Any, params: Any) -> mcp.ElicitResult:
    assert params.message == "Who?" and params.requested_schema["properties"].keys() == {"name"}
    return mcp.ElicitResult(action="accept", content={"name": "Ada"})


async def sampled(context: Any, params: Any) -> mcp.CreateMessageResult:
    return mcp.CreateMessageResult(role="assistant", content=mcp.TextContent(type="text", text="Said."), model="m")


async def rooted(context: Any) -> mcp.ListRootsResult:
    return mcp.ListRootsResult(roots=[mcp.Root(uri="file:///home")])


def client(running: Serving, mode: str, **more: Any) -> Client:
    answers = {"elicitation_callback": elicited, "sampling_callback": sampled, "list_roots_callback": rooted}
    return Client(running.url, mode=mode, cache=None, **{**answers, **more})


def text(result: Any) -> str:
    return result.content[0].text


@pytest.mark.parametrize("mode", ERAS)
async def test_resources_prompts_and_completion_are_the_servers(mode: str, asker: str) -> None:
    async with serving_it(asker) as running, client(running, mode) as user:
        assert mode == MODERN or user.instructions == "Ask away."
        assert [found.title for found in (await user.list_resources()).resources] == ["A text"]
        templates = (await user.list_resource_templates()).resource_templates
        assert [found.uri_template for found in templates] == ["test://numbers/{number}"]
        assert (await user.read_resource("test://text")).contents[0].text == "the text"
        assert (await user.read_resource("test://numbers/7")).contents[0].text == "number 7"
        assert {found.name for found in (await user.list_prompts()).prompts} == {"greet", "greet_whom"}
        assert (await user.get_prompt("greet", {"name": "Ada"})).messages[0].content.text == "Hello, Ada."
        reference = mcp.PromptReference(name="greet")
        found = await user.complete(reference, {"name": "name", "value": "Green"})
        assert found.completion.values == ["Greenland"]
        with pytest.raises(MCPError):
            await user.read_resource("test://none")


async def test_questions_of_the_handshake_era_reach_the_client_as_requests(asker: str) -> None:
    async with serving_it(asker) as running, client(running, "legacy") as user:
        assert text(await user.call_tool("ask", {})) == "accept Ada"
        assert text(await user.call_tool("sample", {})) == "Said."
        assert text(await user.call_tool("roots", {})) == "file:///home"


async def test_a_client_that_cannot_be_asked_is_not_asked(asker: str) -> None:
    async with serving_it(asker) as running, Client(running.url, mode="legacy") as user:
        with pytest.raises(MCPError, match="does not take elicitation/create"):
            await user.call_tool("ask", {})


def of_one_era(era: str, **more: Any) -> GatewayConfig:
    entry = {"command": sys.executable, "args": ["-I", "-S", TELLING, era], "required": True, "scope": "process"}
    return GatewayConfig.model_validate({"servers": {era: {**entry, **more}}})


@pytest.mark.parametrize(("era", "mode"), [("old", "legacy"), ("new", MODERN)])
async def test_questions_within_tools_prompts_and_resources_reach_the_client(era: str, mode: str) -> None:
    async with served(of_one_era(era)) as running, client(running, mode) as user:
        assert text(await user.call_tool("ask_twice", {})) == "Ada Ada"
        assert (await user.get_prompt("greet")).messages[0].content.text == "Ada Ada"
        assert (await user.read_resource("test://names")).contents[0].text == "Ada Ada"


@pytest.mark.parametrize(("era", "mode"), [("old", MODERN), ("new", "legacy")])
async def test_a_server_of_one_era_answers_clients_of_the_other_and_cannot_ask_them(era: str, mode: str) -> None:
    async with served(of_one_era(era)) as running, client(running, mode) as user:
        assert [each.name for each in (await user.list_tools()).tools] == ["ask_twice"]
        assert [each.name for each in (await user.list_prompts()).prompts] == ["greet"]
        assert [str(each.uri) for each in (await user.list_resources()).resources] == ["test://names"]
        for asking in (user.call_tool("ask_twice", {}), user.get_prompt("greet"), user.read_resource("test://names")):
            if era == "new":
                with pytest.raises(MCPError, match="asks for input by a result"):
                    await asking
            else:
                assert "does not take elicitation/create" in str(await asking)


@pytest.mark.parametrize("mode", ERAS)
async def test_several_servers_offer_their_tools_together_and_nothing_else(mode: str, asker: str) -> None:
    entries = {name: {"url": asker} for name in ("one", "two")}
    async with served(GatewayConfig.model_validate({"servers": entries})) as running:
        async with client(running, mode) as user:
            assert user.server_capabilities.prompts is None
            with pytest.raises(MCPError, match="only tools are served here"):
                await user.list_prompts()
            for name in entries:
                with pytest.raises(MCPError, match="of my own"):
                    await user.call_tool(f"{name}__fail", {})


@pytest.mark.parametrize("mode", ERAS)
async def test_progress_and_logs_arrive_in_order_before_the_result(mode: str, asker: str) -> None:
    progress: list[tuple[float, str | None]] = []
    logs: list[Any] = []

    async def on_progress(done: float, total: float | None, message: str | None) -> None:
        progress.append((done, message))

    async def on_log(params: mcp.LoggingMessageNotificationParams) -> None:
        logs.append(params.data)

    level: dict[str, Any] = {"log_level": "info"} if mode == MODERN else {}
    async with serving_it(asker) as running, client(running, mode, logging_callback=on_log, **level) as user:
        assert text(await user.call_tool("report", {}, progress_callback=on_progress)) == "reported"
        with anyio.fail_after(30):
            while len(progress) < 3 or not logs:
                await anyio.lowlevel.checkpoint()
    assert progress == [(1, "step 1"), (2, "step 2"), (3, "step 3")] and logs == ["a log line"]


@pytest.mark.parametrize("mode", ERAS)
async def test_a_cancelled_call_is_cancelled_at_the_server(mode: str) -> None:
    async with raw_server([SERVER]) as port:
        async with serving_it(f"http://127.0.0.1:{port}/mcp") as running, client(running, mode) as user:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(user.call_tool, "wait", {})
                await user.call_tool("was_started", {})
                tasks.cancel_scope.cancel()
            with anyio.fail_after(30):
                assert text(await user.call_tool("was_stopped", {})) == "true"


async def test_what_a_server_asks_within_a_call_is_bounded_in_number() -> None:
    server = MCPServer("nags", log_level="CRITICAL")

    @server.tool()
    async def nag(ctx: Context) -> str:
        for number in range(5):
            try:
                await ctx.elicit("Who?", Name)
            except MCPError as error:
                return f"{number}: {error}"
        return "never stopped"

    del nag  # registered
    async with listening_server(server, "http-handshake") as entry:
        made = GatewayConfig.model_validate({"servers": {"nags": entry}, "max_requests_per_call": 3})
        async with served(made) as running, client(running, "legacy") as user:
            for _ in range(2):
                said = text(await user.call_tool("nag", {}))
                assert said == "3: a call may make 3 requests (max_requests_per_call)"


async def test_a_client_that_never_answers_is_not_waited_for(asker: str) -> None:
    async def silent(context: Any, params: Any) -> mcp.ElicitResult:
        await anyio.sleep_forever()
        raise AssertionError

    async with (
        serving_it(asker, answer_s=0.05) as running,
        client(running, "legacy", elicitation_callback=silent) as user,
    ):
        with anyio.fail_after(30), pytest.raises(MCPError, match="timed out"):
            await user.call_tool("ask", {})


@pytest.mark.parametrize("mode", ERAS)
async def test_errors_pass_with_code_and_data(mode: str, asker: str) -> None:
    async with serving_it(asker) as running, client(running, mode) as user:
        with pytest.raises(MCPError) as caught:
            await user.call_tool("fail", {})
        error = caught.value.error
        assert (error.code, error.message, error.data) == (-32077, "of my own", {"why": [1, 2]})


@pytest.mark.parametrize("mode", ERAS)
async def test_progress_of_a_server_in_this_process_passes_without_secrets(mode: str) -> None:
    server, told = MCPServer("near", log_level="CRITICAL"), list[str | None]()

    @server.tool()
    async def report(ctx: Context) -> str:
        await ctx.report_progress(1, 1, f"connected with {KEY}")
        return "reported"

    del report  # registered

    async def on_progress(done: float, total: float | None, message: str | None) -> None:
        told.append(message)

    made = GatewayConfig.model_validate({"servers": {"near": {"command": "unused", "env": {"API_KEY": KEY}}}})
    async with Gateway(made, connect=lambda *_: server) as gateway, serving(gateway, ServeConfig()) as running:
        async with client(running, mode) as user:
            assert text(await user.call_tool("report", {}, progress_callback=on_progress)) == "reported"
    assert told == ["connected with [secret]"]
