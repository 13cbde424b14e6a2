"""What servers and MCP clients say to each other passes through `serve`, in both protocol eras."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import mcp_types as mcp
import pytest
from mcp import Client, MCPError
from raw_clients import raw_server
from served import served

from gateway import GatewayConfig
from gateway.serve.app import Serving

pytestmark = pytest.mark.anyio
MODERN = "2026-07-28"
ERAS = ["legacy", MODERN]
SERVER = str(Path(__file__).parents[2] / "support" / "asking_client_server.py")


@asynccontextmanager
async def serving_asker(**entry: Any) -> AsyncIterator[Serving]:
    async with raw_server([SERVER]) as port:
        given = {"url": f"http://127.0.0.1:{port}/mcp", "required": True, **entry}
        async with served(GatewayConfig.model_validate({"servers": {"asker": given}})) as running:
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
async def test_resources_prompts_and_completion_are_the_servers(mode: str) -> None:
    async with serving_asker() as running, client(running, mode) as user:
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


async def test_questions_of_the_handshake_era_reach_the_client_as_requests() -> None:
    async with serving_asker() as running, client(running, "legacy") as user:
        assert text(await user.call_tool("ask", {})) == "accept Ada"
        assert text(await user.call_tool("sample", {})) == "Said."
        assert text(await user.call_tool("roots", {})) == "file:///home"


async def test_questions_as_results_reach_the_client_for_tools_and_prompts() -> None:
    async with serving_asker(scope="session") as running, client(running, MODERN) as user:
        assert text(await user.call_tool("ask_in_a_round", {})) == "{'name': 'Ada'} mine.1"
        assert (await user.get_prompt("greet_whom")).messages[0].content.text == "{'name': 'Ada'} mine.1"


async def test_a_client_that_cannot_be_asked_is_not_asked() -> None:
    async with serving_asker() as running, Client(running.url, mode="legacy") as user:
        with pytest.raises(MCPError, match="does not take elicitation/create"):
            await user.call_tool("ask", {})


@pytest.mark.parametrize("mode", ERAS)
async def test_progress_and_logs_arrive_in_order_before_the_result(mode: str) -> None:
    progress: list[tuple[float, str | None]] = []
    logs: list[Any] = []

    async def on_progress(done: float, total: float | None, message: str | None) -> None:
        progress.append((done, message))

    async def on_log(params: mcp.LoggingMessageNotificationParams) -> None:
        logs.append(params.data)

    level: dict[str, Any] = {"log_level": "info"} if mode == MODERN else {}
    async with serving_asker() as running, client(running, mode, logging_callback=on_log, **level) as user:
        assert text(await user.call_tool("report", {}, progress_callback=on_progress)) == "reported"
        with anyio.fail_after(30):
            while len(progress) < 3 or not logs:
                await anyio.lowlevel.checkpoint()
    assert progress == [(1, "step 1"), (2, "step 2"), (3, "step 3")] and logs == ["a log line"]


@pytest.mark.parametrize("mode", ERAS)
async def test_a_cancelled_call_is_cancelled_at_the_server(mode: str) -> None:
    async with serving_asker() as running, client(running, mode) as user:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(user.call_tool, "wait", {})
            await user.call_tool("was_started", {})
            tasks.cancel_scope.cancel()
        with anyio.fail_after(30):
            assert text(await user.call_tool("was_stopped", {})) == "true"


@pytest.mark.parametrize("mode", ERAS)
async def test_errors_pass_with_code_and_data(mode: str) -> None:
    async with serving_asker() as running, client(running, mode) as user:
        with pytest.raises(MCPError) as caught:
            await user.call_tool("fail", {})
        error = caught.value.error
        assert (error.code, error.message, error.data) == (-32077, "of my own", {"why": [1, 2]})


async def test_several_servers_are_offered_together() -> None:
    async with raw_server([SERVER]) as one, raw_server([SERVER]) as two:
        entries = {name: {"url": f"http://127.0.0.1:{port}/mcp"} for name, port in (("one", one), ("two", two))}
        async with served(GatewayConfig.model_validate({"servers": entries})) as running:
            async with client(running, "legacy") as user:
                prompts = {found.name for found in (await user.list_prompts()).prompts}
                assert prompts == {"one__greet", "one__greet_whom", "two__greet", "two__greet_whom"}
                got = await user.get_prompt("two__greet", {"name": "Ada"})
                assert got.messages[0].content.text == "Hello, Ada."
                assert len((await user.list_resources()).resources) == 2
                assert (await user.read_resource("test://numbers/7")).contents[0].text == "number 7"
                assert text(await user.call_tool("two__ask", {})) == "accept Ada"
