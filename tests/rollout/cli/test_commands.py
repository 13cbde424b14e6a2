"""The command line as programs use it: JSON on standard output, one message on standard error, an exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from commands import mcp_rollout
from typer.main import get_command

from mcp_rollout.gateway.catalogue.tool_config import lock_entries, write_lock
from mcp_rollout.gateway.types import ToolDefinition
from mcp_rollout.rollout.cli.app import COMMANDS
from mcp_rollout.rollout.verl_cpu.tiny_model import make_tiny_model

ROOT = Path(__file__).parents[3]
COMMAND = Path(sys.executable).with_name("mcp-rollout")


@pytest.fixture
def servers(tmp_path: Path) -> Path:
    """An `mcpServers` file as desktop clients write it."""
    entry = {"command": sys.executable, "args": [str(ROOT / "tests/support/echo_server.py")], "autoApprove": ["shout"]}
    file = tmp_path / "servers.json"
    file.write_text(json.dumps({"mcpServers": {"echo": entry}}))
    return file


def test_tools_lists_what_servers_offer_with_the_full_schema(servers: Path) -> None:
    tools = {tool["tool"]: tool for tool in mcp_rollout("tools", servers, "--json").json}
    assert tools["shout"]["audience"] == "policy"
    assert tools["shout"]["input_schema"]["properties"]["times"]["default"] == 1


HIDES = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("sly", log_level="ERROR")
description = "Adds.\u200b\x1b[8m Or so, as long as it likes to."
server.add_tool(lambda: "x", name="add_many_numbers_together", description=description)
server.add_tool(lambda: "x", name="two\\nlines", description="Break.")
server.run("stdio")
"""


def test_healthy_servers_are_listed_though_others_fail_and_each_fault_is_said_once(
    tmp_path: Path, servers: Path
) -> None:
    (tmp_path / "sly.py").write_text(HIDES)
    entries = json.loads(servers.read_text())["mcpServers"]
    entries["sly"] = {"command": sys.executable, "args": [str(tmp_path / "sly.py")]}
    entries["gone"] = {"command": "no-such-program"}
    entries["unmade"] = {"factory": "no_such_module:create", "required": True}
    servers.write_text(json.dumps({"mcpServers": entries}))
    done = mcp_rollout("tools", servers)
    assert done.status == 2 and "Traceback" not in done.err
    assert all(name in done.out for name in ("shout", "add_many_numbers_together", "text, times?"))
    assert max(map(len, done.out.splitlines())) <= 80 and "Adds.<U+200B><U+001B>[8m" in done.out
    assert "\x1b" not in done.out and "\u200b" not in done.out and "  two<U+000A>lines " in done.out
    said = done.err.splitlines()
    assert [line.split(":")[0] for line in said] == ["warning", "error", "error"], done.err
    assert "mcpServers.sly: hidden text in tool add_many_numbers_together: desc" in said[0] and "U+200B" in said[0]
    assert "mcpServers.gone: cannot start 'no-such-program'" in said[1]
    assert "mcpServers.unmade.factory: cannot import no_such_module: " in said[2]


def test_harness_tools_are_listed_and_cannot_be_called() -> None:
    tools = mcp_rollout("tools", "calculator", "--json").json
    assert {tool["tool"] for tool in tools if tool["audience"] == "harness"} >= {"reset", "score"}
    assert mcp_rollout("call", "calculator", "score", '{"messages": []}').status == 2


def test_call_answers_and_says_with_its_status_whether_the_tool_refused(servers: Path) -> None:
    well = mcp_rollout("call", servers, "shout", '{"text": "plum"}', "--json")
    assert (well.status, well.json["text"]) == (0, "PLUM")
    refused = mcp_rollout("call", "calculator", "divide", '{"a": 1, "b": 0}', "--json")
    assert (refused.status, refused.json["is_error"]) == (1, True)


def test_one_lock_can_hold_several_environments(tmp_path: Path) -> None:
    lock = tmp_path / "tools.yaml"
    written = mcp_rollout("tool-config", "calculator", "examples/guess/guess.yaml", "-o", lock, "--json")
    assert (written.status, written.json["tools"]) == (0, 6)


def test_a_lock_that_differs_is_written_over_only_when_the_difference_is_accepted(
    tmp_path: Path, servers: Path
) -> None:
    lock = tmp_path / "made" / "for" / "it" / "tools.yaml"
    old = {"exposed_name": "shout", "description": "Whisper.", "input_schema": {"type": "object"}}
    tools = [ToolDefinition(server="echo", name=name, **old) for name in ("shout", "gone")]
    write_lock(lock, lock_entries({"echo": tools}, environment=None, source=str(servers)))
    written = lock.read_text()
    command = ("tool-config", servers, "-o", lock)
    refused = mcp_rollout(*command)
    assert (refused.status, lock.read_text()) == (2, written)
    assert '-  "description": "Whisper."' in refused.err and '+  "description": "Say it louder."' in refused.err
    assert f"echo/gone of {servers}: would be lost" in refused.err and "echo/answer of" in refused.err
    assert f"`mcp-rollout tool-config {servers} -o {lock} --accept`" in refused.err.splitlines()[-1]
    assert mcp_rollout(*command, "--accept").status == 0
    assert "Whisper." not in lock.read_text()


def test_rows_name_their_task_and_begin_with_what_the_user_says(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    done = mcp_rollout("data", "retail", "--split", "test", "-n", "3", "--tools", "get_order,get_user", "-o", file)
    assert done.status == 0, done.err
    rows = pq.read_table(file).to_pylist()
    assert [row["extra_info"]["index"] for row in rows] == [0, 1, 2]
    assert rows[0]["extra_info"]["mcp"]["environment"] == "retail"
    assert rows[0]["extra_info"]["mcp"]["tools"] == ["get_order", "get_user"]
    assert [message["role"] for message in rows[0]["prompt"]] == ["system", "user"]


def test_a_run_resumes_without_repeating_or_losing_a_trajectory(tmp_path: Path) -> None:
    out = tmp_path / "traces"
    run = ("run", "calculator", "--engine", "expert", "--out", out, "--json")
    first = mcp_rollout(*run, "-n", "2").json
    assert (first["trajectories"], first["resumed"], first["reward_mean"]) == (2, 0, 1.0)
    assert mcp_rollout(*run, "-n", "3").status == 2  # without --resume nothing is added
    more = mcp_rollout(*run, "-n", "3", "--samples", "2", "--resume").json
    assert (more["trajectories"], more["resumed"]) == (6, 2)
    lines = [json.loads(line) for line in mcp_rollout("trace", "ls", out, "--json").out.splitlines()]
    assert sorted((line["row"], line["sample"]) for line in lines) == [(row, n) for row in range(3) for n in range(2)]
    assert {line["stop_reason"] for line in lines} == {"answered"} and {line["reward"] for line in lines} == {1.0}
    other = mcp_rollout("run", "calculator", "--engine", "none", "--out", out, "--resume")
    assert other.status == 2 and "traces of engine expert" in other.err


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two traces that are worth imitating."""
    out = tmp_path_factory.mktemp("experts") / "traces"
    mcp_rollout("run", "calculator", "--engine", "expert", "-n", "2", "--out", out)
    return out


def test_a_trace_is_shown_with_its_thinking_folded(experts: Path) -> None:
    trace = json.loads(mcp_rollout("trace", "ls", experts, "--json").out.splitlines()[0])
    shown = mcp_rollout("trace", "show", experts, trace["id"][:8])
    assert shown.status == 0 and "thinks" in shown.out and f"turn {trace['turns']}" in shown.out
    record = mcp_rollout("trace", "show", experts, trace["id"], "--json").json
    assert len(record["response_ids"]) == len(record["loss_mask"]) == len(record["logprobs"])


def test_the_trajectories_worth_imitating_are_exported_with_their_tools(experts: Path, tmp_path: Path) -> None:
    mcp_rollout("run", "calculator", "--engine", "none", "-n", "2", "--out", tmp_path / "bad")
    file = tmp_path / "sft.jsonl"
    done = mcp_rollout("trace", "export", experts, "--sft", "-o", file, "--json")
    assert (done.status, done.json["rows"]) == (0, 2)
    row = json.loads(file.read_text().splitlines()[0])
    assert [message["role"] for message in row["messages"][:3]] == ["system", "user", "assistant"]
    assert row["messages"][2]["reasoning_content"] and row["messages"][2]["tool_calls"]
    assert {tool["function"]["name"] for tool in row["tools"]} >= {"add", "divide"}
    assert mcp_rollout("trace", "export", tmp_path / "bad", "--sft", "-o", file).status == 1


def test_help_needs_no_heavy_import() -> None:
    heavy = "[name for name in ('mcp', 'pydantic', 'torch') if name in sys.modules]"
    program = f"import sys; from mcp_rollout.rollout.cli.app import app; print({heavy})"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"
    assert mcp_rollout("--help").status == 0


def test_the_listing_has_the_first_line_of_each_commands_own_help() -> None:
    for name, summary in COMMANDS.items():
        command = get_command(import_module(f"mcp_rollout.rollout.cli.{name.replace('-', '_')}").app)
        assert (command.help or "").startswith(summary), name


BAD_FILES = {
    "syntax.json": ("{", ["not valid JSON", "line 1"]),
    "typo.json": ('{"mcpServers": {"x": {"comand": "y"}}}', ["mcpServers.x.comand", "did you mean 'command'"]),
    "singular.json": ('{"mcpServer": {}}', ["mcpServer: no servers here", "did you mean 'mcpServers'"]),
    "missing.json": ('{"mcpServers": {"x": {"command": "no-such-program"}}}', ["mcpServers.x", "no such program"]),
    "silent.json": (
        '{"mcpServers": {"x": {"command": "sleep", "args": ["60"], "start_timeout_s": 1}}}',
        ["mcpServers.x", "handshake", "start_timeout_s"],
    ),
    "unset.json": (
        '{"mcpServers": {"x": {"command": "y", "env": {"K": "${NOT_SET}"}}}}',
        ["x.env.K", "NOT_SET"],
    ),
    "empty.yaml": ("servers: {}\n", ["servers"]),
    "nameless.yaml": ("user: {server: z}\n", ["servers: no servers here", "expected servers:"]),
    "idle.yaml": (
        "servers: {x: {command: y}}\nfilters: {long_thinking: end}\n",
        ["filters.long_thinking", "matches no turn without tokens", "give the most thinking tokens"],
    ),
    "unused.yaml": (
        "servers: {x: {command: y}}\nfilters: {void: {action: mark, penalty: 0.4}}\n",
        ["filters.void", "has a penalty", "write action: penalise"],
    ),
    "parts.yaml": (
        "servers: {x: {command: y}}\nsystem: {instruction_of: x}\n",
        ["system.0.instruction_of", "did you mean 'instructions_of'?"],
    ),
    "typo.yaml": ("mcpServer: {x: {command: y}}\n", ["mcpServer: no servers here", "did you mean 'mcpServers'?"]),
    "user.yaml": (
        "servers: {x: {command: y}}\nuser: {server: z}\n",
        ["user.server", "'z'", "not one of the servers"],
    ),
    "part.yaml": (
        "servers: {x: {command: y}}\nreward: {server: x, parts: [acc]}\n",
        ["reward.parts", "acc", "choose another name"],
    ),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_gives_one_message_with_file_key_and_remedy(tmp_path: Path, name: str) -> None:
    content, said = BAD_FILES[name]
    (tmp_path / name).write_text(content)
    done = mcp_rollout("tools", tmp_path / name)
    message = done.err.splitlines()[-1]
    assert done.status == 2 and done.out == "" and "Traceback" not in done.err
    assert message.startswith("error: ") and name in message and all(part in message for part in said), message


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tools", "retial"], "did you mean 'retail'"),
        (["tools", "/nowhere.json"], "no such file"),
        (["call", "calculator", "ad", "{}"], "tools: add"),
        (["call", "calculator", "add", "{"], "not JSON"),
        (["data", "calculator", "-n", "99999", "-o", "x.parquet"], "ask for fewer"),
        (["data", "calculator", "--split", "dev", "-o", "x.parquet"], "one of train, test"),
        (["data", "retail", "--tools", "get_ordr", "-o", "x.parquet"], "unknown tool 'get_ordr'"),
        (["data", "calculator", "-n", "1", "-o", "/proc/x/y.parquet"], "cannot be written"),
        (["tool-config", "calculator", "-o", "/proc/nowhere/tools.yaml"], "cannot be written"),
        (["run", "calculator", "--engine", "expart", "--out", "x"], "one of expert, random, none"),
        (["run", "calculator", "--engine", "expert", "-n", "1", "--out", "/proc/x"], "--out: cannot write traces"),
        (["trace", "ls", "/nowhere"], "no such directory"),
        (["tools", "/"], "is a directory"),
        (["tool-config", "calculator", "-o", "/"], "-o: is a directory"),
        (["run", "calculator", "--engine", "none", "--out", "README.md"], "--out: is a file"),
    ],
)
def test_bad_use_gives_one_message_and_status_two(arguments: list[str], said: str) -> None:
    done = mcp_rollout(*arguments)
    assert done.status == 2 and "Traceback" not in done.err
    assert said in done.err.splitlines()[-1], done.err


def test_tools_says_what_they_cost_under_a_tokenizer(servers: Path, tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "model", hidden=64, layers=1)
    costs = {
        tool["tool"]: tool["tokens"]
        for tool in mcp_rollout("tools", servers, "--tokenizer", tmp_path / "model", "--json").json
    }
    assert costs["shout"] > 50
    said = mcp_rollout("tools", servers, "--tokenizer", tmp_path / "model").out
    assert "data.max_prompt_length=" in said
    missing = mcp_rollout("tools", servers, "--tokenizer", tmp_path / "nothing")
    assert (missing.status, "--tokenizer" in missing.err) == (2, True)


def test_the_version_is_the_installed_one() -> None:
    assert mcp_rollout("--version").out.strip() == version("mcp-rollout")
