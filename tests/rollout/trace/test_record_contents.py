"""Everything that a record and its run record hold to argue about a trajectory: each item of docs/traces.md by name."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import CallToolResult, TextContent
from trace_samples import read_file
from worlds import environment, opened, play, saying

from mcp_rollout.gateway.types import SERVER_TIME_META
from mcp_rollout.rollout.engines.engine import EngineOptions
from mcp_rollout.rollout.engines.scripted import WithoutModel
from mcp_rollout.rollout.environment.config import load_environment
from mcp_rollout.rollout.evaluation.resume import evaluation_record
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.trace.archive import archive
from mcp_rollout.rollout.trace.journal import from_json
from mcp_rollout.rollout.trace.run_record import read_run_records, write_run_record
from mcp_rollout.rollout.trace.segment import unpacked
from mcp_rollout.rollout.types import Call

pytestmark = pytest.mark.anyio


def server() -> MCPServer:
    made = MCPServer("clock", version="1.2.3")

    @made.tool()
    async def look(times: int, ctx: Context) -> CallToolResult:
        await ctx.report_progress(1, 2, "looking")
        text = TextContent(type="text", text="noon " * times)
        return CallToolResult(content=[text], _meta={SERVER_TIME_META: 0.25})

    return made


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def record(tmp_path: Path) -> dict[str, Any]:
    """A record as the journal has it: one call with an argument that is coerced, then an answer."""
    call = hermes.write(thinking="Look.", calls=[Call(name="look", arguments={"times": "2"})])
    await play({"clock": server()}, saying(call, "Noon."), tmp_path)
    return archived(tmp_path)


def archived(directory: Path) -> dict[str, Any]:
    """The record of the journal, which its archive has as well."""
    (journal,) = directory.glob("*.jsonl")
    line = journal.read_text()
    (kept,) = read_file(archive(journal))
    assert kept == from_json(line)
    return json.loads(line)


async def test_a_record_has_identity_tokens_turns_and_outcome(record: dict[str, Any]) -> None:
    assert record["schema_version"] == 4 and record["id"]
    assert record["task"].keys() >= {"environment", "task", "seed", "tools", "later_tools", "prompt", "answer"}
    origin = ("row", "sample", "step", "split", "validate", "uid", "attempt", "parent", "branched_at", "engine")
    assert record["origin"].keys() == set(origin)
    response = len(record["response_ids"])
    assert record["prompt_ids"] and len(record["loss_mask"]) == len(unpacked(record["logprobs"])) == response
    assert record["spans"][0].keys() == {"kind", "turn", "start", "end"} and record["earlier"] == []
    assert [message["role"] for message in record["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert record["stop_reason"] == "answered" and record["failure"] is None
    assert record.keys() >= {"run", "agent", "reward", "server_events", "lease_wait_s", "has_logprobs"}
    assert abs(record["began_at"] - time.time()) < 100 and record["elapsed_s"] > 0


async def test_a_turn_has_its_generation_with_times_and_what_the_engine_said_of_it(record: dict[str, Any]) -> None:
    turn = record["turns"][0]
    assert turn["thinking"] == "Look." and turn["finish_reason"] == "stop" and turn["sampled"] > 0
    assert turn.keys() >= {"request_ids", "seeds", "weights_version", "generations", "trimmed", "marks", "user"}
    assert abs(turn["began_at"] - time.time()) < 100 and turn["generate_s"] >= 0
    (note,) = turn["server_events"]["notifications"]
    assert (note["server"], note["text"], note["progress"], note["total"]) == ("clock", "looking", 1, 2)


async def test_a_call_has_its_times_bytes_resends_and_coercions(record: dict[str, Any]) -> None:
    (call,) = record["turns"][0]["tools"]
    assert (call["name"], call["server"], call["is_error"], call["fault"]) == ("look", "clock", False, None)
    assert call["arguments"] == {"times": "2"} and call["coerced"] == {"times": 2} and call["text"] == "noon noon "
    assert abs(call["began_at"] - time.time()) < 100
    assert call["elapsed_s"] > 0 and call["wait_s"] >= 0  # on the wire, and in the queue before and after
    assert call["server_s"] == 0.25  # as the server says
    assert call["resends"] == 0 and call["sent_bytes"] == 14 and call["received_bytes"] == 10


async def test_a_run_record_has_what_trajectories_share(tmp_path: Path) -> None:
    environment_file = tmp_path / "clock.yaml"
    environment_file.write_text("servers: {clock: {command: unused}}\n")
    loaded = load_environment(str(environment_file))
    made = environment({"clock": server()}, file=loaded.file)
    options = EngineOptions(engine="expert")
    async with opened(made, {"clock": server()}) as gateway:
        written = evaluation_record(made, gateway, options, WithoutModel("expert"), {"split": "test"})
    name = write_run_record(tmp_path, written)
    found = read_run_records(tmp_path)[name]
    assert found == written and found.kind == "evaluation" and found.engine == "expert"
    assert found.environment["file"] == str(environment_file) and len(found.environment["sha256"]) == 64
    assert found.environment.keys() >= {"name", "reward", "limits", "thinking", "filters", "results"}
    assert found.servers == {"clock": {"name": "clock", "version": "1.2.3", "protocol": "2026-07-28"}}
    assert [tool["function"]["name"] for tool in found.tools] == ["look"] and list(found.tool_digests) == ["look"]
    assert found.sampling.keys() >= {"temperature", "top_p", "top_k", "seed"} and found.settings == {"split": "test"}
    assert found.versions.keys() >= {"python", "mcp-rollout", "mcp"}
    assert found.commit is None or len(found.commit.removesuffix("-dirty")) == 40
