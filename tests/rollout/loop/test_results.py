"""What the policy reads of a result, and what the trace keeps of it."""

import hashlib
import io
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from pydantic import BaseModel
from rich.console import Console
from worlds import play, saying

from mcp_rollout.rollout.environment.sections import CutRules, Keep
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.loop.results import rule_for, shorten
from mcp_rollout.rollout.tokens.chatml import ByteTokens
from mcp_rollout.rollout.trace.record import ToolEvent, Trace
from mcp_rollout.rollout.trace.store import read_traces
from mcp_rollout.rollout.trace.view import render
from mcp_rollout.rollout.types import Call

pytestmark = pytest.mark.anyio
TOKENS = ByteTokens()


def calling(name: str, **arguments: Any) -> str:
    return hermes.write(calls=[Call(name=name, arguments=arguments)])


class Weather(BaseModel):
    sky: str


async def ask_weather() -> Elicit[Weather]:
    return Elicit("How is the sky?", Weather)


def library() -> MCPServer:
    server = MCPServer("library", log_level="ERROR")

    @server.tool(structured_output=False)
    def read(size: int) -> str:
        """Read."""
        return "a" * (size // 2) + "z" * (size - size // 2)

    @server.tool(structured_output=False)
    def everything() -> CallToolResult:
        """One block of each kind."""
        return CallToolResult(
            content=[
                TextContent(type="text", text="Here."),
                ImageContent(type="image", data="aW1n", mime_type="image/png"),
                AudioContent(type="audio", data="YXVkaW8=", mime_type="audio/wav"),
                ResourceLink(type="resource_link", uri="file:///a.txt", name="a.txt", description="The letter."),
                EmbeddedResource(
                    type="resource",
                    resource=TextResourceContents(uri="file:///b.txt", mime_type="text/plain", text="Dear B."),
                ),
                EmbeddedResource(
                    type="resource",
                    resource=BlobResourceContents(uri="file:///c.bin", mime_type="application/x", blob="AAEC"),
                ),
            ],
            structured_content={"more": [1, 2]},
        )

    @server.tool()
    def weather() -> Weather:
        """Weather."""
        return Weather(sky="blue")

    @server.tool(structured_output=False)
    async def ask(weather: Annotated[Weather, Resolve(ask_weather)], ctx: Context) -> str:
        """Ask."""
        await ctx.report_progress(1, 2, "asked")
        return weather.sky

    return server


async def one_call(tmp_path: Path, completion: str, **fields: Any) -> tuple[Trace, ToolEvent, str]:
    trace = await play({"library": library()}, saying(completion, "Done."), tmp_path, **fields)
    (stored,) = read_traces(tmp_path)
    assert stored == trace
    read = next(message["content"] for message in trace.messages if message["role"] == "tool")
    return stored, trace.turns[0].tools[0], read


@pytest.mark.parametrize(
    ("keep", "begins", "ends"),
    [("head", "a" * 30, "tokens cut ...]"), ("tail", "[... ", "z" * 30), ("both", "a" * 20, "z" * 20)],
)
async def test_a_long_result_is_cut_for_the_policy_and_whole_in_the_trace(
    tmp_path: Path, keep: str, begins: str, ends: str
) -> None:
    results = {"max_tokens": 100, "keep": keep}
    trace, event, read = await one_call(tmp_path, calling("read", size=5000), results=results)
    assert read.startswith(begins) and read.endswith(ends)
    assert 90 <= len(TOKENS.encode(read)) <= 100
    assert f"[... {event.cut_tokens} tokens cut ...]" in read
    assert event.cut_tokens == 5000 - read.count("a") - read.count("z")
    assert event.text == "a" * 2500 + "z" * 2500 and event.shown == read
    assert f"{event.cut_tokens} tokens cut" in TOKENS.decode(trace.response_ids)


async def test_rules_are_per_tool_and_a_result_without_one_is_not_cut(tmp_path: Path) -> None:
    results = {"max_tokens": 20, "tools": {"rea*": {"max_tokens": None}, "read": {"max_tokens": 30}}}
    _, event, read = await one_call(tmp_path, calling("read", size=500), results=results)
    assert len(read) == 500 and event.shown is None and event.cut_tokens == 0
    config = CutRules.model_validate(results)
    assert rule_for("other", config).max_tokens == 20


async def test_every_kind_of_content_is_named_and_accounted_for(tmp_path: Path) -> None:
    _, event, read = await one_call(tmp_path, calling("everything"))
    assert read.split("\n") == [
        "Here.",
        "[image: image/png, 3 bytes]",
        "[audio: audio/wav, 5 bytes]",
        "[resource: file:///a.txt]",
        "The letter.",
        "[resource: file:///b.txt, text/plain]",
        "Dear B.",
        "[resource: file:///c.bin, application/x, 3 bytes]",
        '{"more": [1, 2]}',
    ]
    assert [(block.kind, block.size, block.mime_type, block.uri) for block in event.blocks] == [
        ("image", 3, "image/png", None),
        ("audio", 5, "audio/wav", None),
        ("resource", 3, "application/x", "file:///c.bin"),
    ]
    assert event.blocks[0].sha256 == hashlib.sha256(b"img").hexdigest()
    assert event.structured is None  # a text has it


def user() -> MCPServer:
    server = MCPServer("user", log_level="ERROR")

    @server.tool(meta={"mcp-rollout/role": "elicit"})
    def elicit(seq: int, message: str) -> dict[str, Any]:
        return {"action": "accept", "content": {"sky": f"grey {seq}"}}

    return server


async def test_questions_and_progress_are_in_the_trace_of_their_turn(tmp_path: Path) -> None:
    servers = {"library": library(), "user": user()}
    trace = await play(servers, saying(calling("ask"), "Done."), tmp_path, elicitation={"server": "user"})
    (stored,) = read_traces(tmp_path)
    assert stored == trace
    first, second = trace.turns
    (request,) = first.server_events.requests
    assert (request.server, request.tool, request.kind) == ("library", "ask", "elicitation")
    assert request.asked["message"] == "How is the sky?" and request.refused is None
    assert request.answer == {"action": "accept", "content": {"sky": "grey 1"}}
    (progress,) = first.server_events.notifications
    assert (progress.kind, progress.progress, progress.text) == ("progress", 1, "asked")
    assert first.tools[0].text == "grey 1"
    assert second.server_events.requests == [] and trace.server_events.requests == []
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(render(trace))
    shown = console.export_text()
    assert "asks    elicitation for ask: How is the sky?" in shown and "grey 1" in shown


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=3000), st.integers(16, 200), st.sampled_from(Keep))
def test_what_is_shown_never_has_more_tokens_than_allowed(text: str, most: int, keep: Keep) -> None:
    shown, cut = shorten(text, most, keep, TOKENS)
    assert len(TOKENS.encode(shown)) <= max(most, len("[... 12000 tokens cut ...]"))
    assert (cut == 0) == (shown == text)
    shown.encode()


def test_of_a_very_long_text_only_the_ends_are_tokenised() -> None:
    tokenised = 0

    class Counting(ByteTokens):
        def encode(self, text: str) -> list[int]:
            nonlocal tokenised
            tokenised += len(text)
            return super().encode(text)

    text = "begin" + "x" * 3_000_000 + "end"
    shown, cut = shorten(text, 100, Keep.BOTH, Counting())
    assert shown.startswith("begin") and shown.endswith("end") and "about" in shown
    assert abs(cut - 3_000_000) < 1000 and tokenised < 20_000
