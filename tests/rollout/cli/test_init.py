"""`init`: an environment of a servers file that can be evaluated at once."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.cli.app import COMMANDS, app
from mcp_rollout.rollout.environment.config import load_environment
from mcp_rollout.rollout.environment.task_file import read_tasks
from mcp_rollout.rollout.trace.store import read_traces

CALLS = ["--call", 'notes/write={"name": "a", "text": "{word}"}', "--call", 'read={"name": "a"}']
WRITES = ["--writes-to", "notes:notes_server", *CALLS]


@pytest.fixture(autouse=True)
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("servers.json").write_text(json.dumps({"mcpServers": {"notes": {"factory": "notes:notes_server"}}}))


def init(*arguments: str, status: int = 0) -> Result:
    done = CliRunner().invoke(app, ["init", *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == status, done.output
    return done


def test_what_init_writes_is_played_and_scored_at_once() -> None:
    done = init("servers.json", "--out", "made/mine", *WRITES)
    assert "all servers can be trained against, as made/mine/servers.json has them" in done.stdout
    made = load_environment("mine", "made/mine")
    assert made.servers["notes"].scope == "process" and made.servers["notes"].required
    assert [task.answer for task in read_tasks("made/mine/tasks.jsonl")] == ["2", "write", "read"]
    played = CliRunner().invoke(app, shlex.split("run made/mine/mine.yaml --split all --engine none --out out"))
    assert played.exit_code == 0, played.output
    traces = list(read_traces(Path("out")))
    assert [trace.reward.parts for trace in traces if trace.reward] == [{"solved": 0.0, "own": 0.0}] * 3
    assert traces[0].messages[0]["role"] == "system" and "Answer: " in traces[0].messages[0]["content"]


def test_every_command_that_init_prints_exists_and_names_what_it_wrote() -> None:
    printed = init("servers.json", *WRITES).stdout
    commands = re.findall(r"^  mcp-rollout (\S+) (\S+)", printed, re.MULTILINE)
    made = "servers/servers.yaml"
    assert commands == [("check-env", made), ("run", made), ("train", "servers")]
    assert {name for name, _ in commands} <= COMMANDS.keys() and load_environment("servers").file == made


def test_a_server_whose_fitness_is_open_is_written_and_said() -> None:
    done = init("servers.json", status=3)
    assert "a server's fitness is open" in done.stdout and Path("servers/servers.json").is_file()


def test_init_overwrites_nothing_and_leaves_no_half() -> None:
    Path("servers").mkdir()
    with pytest.raises(ConfigError, match="is there already"):
        init("servers.json")
    Path("broken.json").write_text(json.dumps({"mcpServers": {"gone": {"command": "no-such-program"}}}))
    before = sorted(Path().iterdir())
    with pytest.raises(ConfigError, match=r"^broken.json: mcpServers: no server starts and has tools"):
        init("broken.json")
    assert sorted(Path().iterdir()) == before
    Path("own.yaml").write_text("servers: {notes: {factory: 'notes:notes_server'}}\n")
    with pytest.raises(ConfigError, match="is an environment already"):
        init("own.yaml")


def test_a_server_that_does_not_start_or_is_invalid_is_written_as_disabled_beside_the_others() -> None:
    entries = json.loads(Path("servers.json").read_text())["mcpServers"]
    entries |= {"gone": {"command": "no-such-program"}, "odd": {"comand": "npx"}}
    Path("three.json").write_text(json.dumps({"mcpServers": entries}))
    done = init("three.json", "--out", "mine", *WRITES, status=1)
    assert "cannot start 'no-such-program'" in done.stdout and "unknown key" in " ".join(done.stdout.split())
    assert "mine/servers.json: gone.disabled: true" in done.stderr
    assert set(load_environment("mine", "mine").servers) == {"notes"}
    assert [task.answer for task in read_tasks("mine/tasks.jsonl")] == ["2", "write", "read"]


SERVER = """
import sys
from pathlib import Path
from mcp.server.mcpserver import MCPServer

if Path("OUT").exists():
    sys.exit("there is a half")
server = MCPServer("files", log_level="ERROR")


@server.tool()
def write(name: str, text: str) -> str:
    Path(sys.argv[1], name).write_text(text)
    return "written"


@server.tool()
def read(name: str) -> str:
    return Path(sys.argv[1], name).read_text()


server.run()
"""


@pytest.mark.full
def test_an_environment_that_is_not_whole_yet_does_not_have_its_name(tmp_path: Path) -> None:
    """A process that is killed meanwhile leaves nothing that the next one would refuse."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "note.txt").write_text("kept")
    text = SERVER.replace("OUT", str(tmp_path / "made" / "mine"))
    entry = {"command": "${python}", "args": ["-c", text, str(tmp_path / "data")]}
    Path("servers.json").write_text(json.dumps({"mcpServers": {"files": entry}}))
    init("servers.json", "--out", "made/mine", *(each.replace("notes/", "files/") for each in CALLS))
    assert {path.name for path in Path("made").iterdir()} == {"mine"}
    template = load_environment("mine", "made/mine").lease_dir.template
    assert template == str(tmp_path / "made/mine/servers.lease_dir") and Path(template, "data/note.txt").is_file()
