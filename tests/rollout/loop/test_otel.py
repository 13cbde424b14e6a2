"""Spans of whole trajectories, by an in-memory exporter, down into a real server; and none where none are wanted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from serving import serving
from worlds import ROLE, play, saying, task

from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.task import Origin
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.loop.trajectory import roll_out
from mcp_rollout.rollout.tokens.chatml import ByteTokens
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.store import TraceStore
from mcp_rollout.rollout.types import Call

sdk = pytest.importorskip("opentelemetry.sdk.trace")
export = pytest.importorskip("opentelemetry.sdk.trace.export")
memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
pytestmark = pytest.mark.anyio


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    provider, spans = sdk.TracerProvider(), memory.InMemorySpanExporter()
    provider.add_span_processor(export.SimpleSpanProcessor(spans))
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
    # mcp's tracer keeps the first provider that it meets, which may be that of another test.
    monkeypatch.setattr("mcp.shared._otel._tracer", provider.get_tracer("mcp-python-sdk"))
    yield spans
    provider.shutdown()


def world(contexts: list[str]) -> dict[str, MCPServer]:
    server, user = MCPServer("world", log_level="ERROR"), MCPServer("user", log_level="ERROR")

    @server.tool()
    async def add(a: int, ctx: Context) -> str:
        """Add."""
        contexts.append(str((ctx.request_context.meta or {}).get("traceparent")))
        return "private text"

    @server.tool()
    async def refuse() -> str:
        """Refuse."""
        raise ToolError("private refusal")

    @user.tool(name="start", meta={ROLE: "start"})
    async def start() -> dict[str, Any]:
        return {"message": "Go."}

    @user.tool(name="reply", meta={ROLE: "reply"})
    async def reply(seq: int, message: str) -> dict[str, Any]:
        return {"message": "Bye.", "done": True}

    return {"world": server, "user": user}


async def test_a_trajectory_its_turns_and_its_calls_are_spans_down_into_the_server(
    tmp_path: Path, exporter: Any
) -> None:
    contexts: list[str] = []
    calls = [Call(name="add", arguments={"a": 1}), Call(name="refuse"), Call(name="add", arguments={"a": "x"})]
    texts = [hermes.write(calls=calls), "Done."]
    servers = world(contexts)
    async with serving(servers["world"], "http") as at_world, serving(servers["user"], "http") as at_user:
        entries = {"world": at_world, "user": at_user}
        made = Environment.model_validate({"name": "test", "servers": entries, "user": {"server": "user"}})
        async with Gateway(made) as gateway:
            trace = await roll_out(
                Trace.begin("t" * 32, task(), Origin(engine="scripted:m")),
                environment=made,
                gateway=gateway,
                policy_for=saying(*texts),
                tokens=ByteTokens(),
                limits=Limits(response_tokens=20_000),
                store=TraceStore(tmp_path),
            )
    spans = {span.context.span_id: span for span in exporter.get_finished_spans()}

    def named(name: str) -> list[Any]:
        return [span for span in spans.values() if span.name == name]

    def above(span: Any) -> list[str]:
        found: list[str] = []
        while span.parent is not None:
            span = spans[span.parent.span_id]
            found.append(span.name)
        return found

    (root,) = named("invoke_agent test")
    # Listings and other requests of the connections belong to no trajectory.
    own = [span for span in spans.values() if span.context.trace_id == root.context.trace_id]
    assert root.attributes["gen_ai.operation.name"] == "invoke_agent"
    assert root.attributes["mcp_rollout.stop_reason"] == "user_done"
    assert root.attributes["mcp_rollout.reward"] == trace.reward.score  # type: ignore[union-attr]
    assert [span.name for span in own if span.name.startswith("turn")] == ["turn 0", "turn 1"]
    first, second = sorted(named("chat m"), key=lambda span: span.start_time)
    assert above(first) == ["turn 0", "invoke_agent test"] and above(second) == ["turn 1", "invoke_agent test"]
    assert first.attributes["gen_ai.usage.output_tokens"] == trace.turns[0].sampled
    assert first.attributes["gen_ai.usage.input_tokens"] == len(trace.prompt_ids)
    assert first.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    tools = sorted(
        (span for span in own if span.name.startswith("execute_tool")), key=lambda s: s.attributes["mcp_rollout.call"]
    )
    kinds = [span.attributes.get("error.type") for span in tools]
    assert kinds == [None, "tool_error", "invalid_arguments"]
    assert all(above(span) == ["turn 0", "invoke_agent test"] for span in tools)
    # The server's own spans are below the request's, and the request's below the call's: its context travelled.
    (served,) = named("tools/call add")
    assert above(served) == ["MCP send tools/call add", "execute_tool add", "turn 0", "invoke_agent test"]
    (sent,) = named("MCP send tools/call add")
    assert [c[:-3] for c in contexts] == [f"00-{root.context.trace_id:032x}-{sent.context.span_id:016x}"]
    (replied,) = named("tools/call reply")
    assert above(replied)[1:] == ["ask_user", "turn 1", "invoke_agent test"]
    written = [*map(str, (span.attributes for span in own)), *(str(span.events) for span in own)]
    assert not any("private" in text for text in written)


async def test_a_world_that_broke_gives_its_spans_the_failures_code(tmp_path: Path, exporter: Any) -> None:
    server = MCPServer("world", log_level="ERROR")

    @server.tool(meta={ROLE: "reset"})
    async def reset(task: str, seed: int) -> dict[str, Any]:
        raise ToolError("no such task")

    await play({"world": server}, saying(), tmp_path)
    (root,) = [span for span in exporter.get_finished_spans() if span.name == "invoke_agent test"]
    assert root.attributes["error.type"] == "harness_error" and not root.status.is_ok


def test_nothing_is_imported_for_spans_that_nobody_wants(tmp_path: Path) -> None:
    arguments = ["run", "calculator", "--engine", "none", "-n", "1", "--out", str(tmp_path)]
    code = (
        "import sys; from mcp_rollout.rollout.cli.app import app\n"
        f"app({arguments}, standalone_mode=False)\n"
        "print({name for name in sys.modules if name.startswith('opentelemetry.sdk')})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "set()", done.stdout + done.stderr


@pytest.fixture
def collector() -> Iterator[tuple[dict[str, str], list[bytes]]]:
    """Variables that name a collector on this machine, and what it gets."""
    bodies: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.path.encode() + self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_port}"}, bodies
        server.shutdown()


def test_the_option_sends_them_to_a_collector(tmp_path: Path, collector: tuple[dict[str, str], list[bytes]]) -> None:
    environment, bodies = collector
    arguments = ["run", "calculator", "--engine", "expert", "-n", "1", "--out", tmp_path, "--otel", "--json"]
    command = [Path(sys.executable).with_name("mcp-rollout"), *arguments]
    subprocess.run(command, env=environment, capture_output=True, check=True, timeout=60)
    sent = b"".join(bodies)
    assert sent.startswith(b"/v1/traces") and b"gzip" not in sent
    assert b"invoke_agent calculator" in sent and b"execute_tool" in sent and b"mcp-rollout" in sent
