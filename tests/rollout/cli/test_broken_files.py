"""`call`, `tool-config` and `tools` on files of which something is broken: only what is needed has to be whole."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from mcp_rollout.gateway.catalogue.tool_config import read_lock
from mcp_rollout.gateway.errors import ConfigError, faults_of
from mcp_rollout.rollout.cli.call import call as call_tool
from mcp_rollout.rollout.cli.tool_config import tool_config
from mcp_rollout.rollout.cli.tools import tools

MINI = str(Path(__file__).parents[2] / "gateway" / "mini_server.py")


def mini(*offered: str, **more: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-I", "-S", MINI, *offered], **more}


def file_of(tmp_path: Path, **entries: Any) -> str:
    file = tmp_path / "servers.json"
    file.write_text(json.dumps({"mcpServers": entries}))
    return str(file)


def call(file: str, tool: str, arguments: str = '{"text": "plum"}') -> int:
    return call_tool(file, tool, arguments)


BROKEN: dict[str, Any] = {
    "typo": {"comand": "x"},
    "gone": {"command": "no-such-program"},
    "torn": mini("echo", tools=["no_such_tool"]),
    "lost": mini("echo", cwd="${lease.dir}"),
}


def test_a_call_is_made_though_other_entries_are_broken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = file_of(tmp_path, well=mini("echo"), **BROKEN)
    assert call(file, "echo") == 0
    assert "plum" in capsys.readouterr().out


def test_a_call_that_names_its_server_starts_no_other(tmp_path: Path) -> None:
    started = tmp_path / "started"
    other = {"command": "sh", "args": ["-c", f"touch {started}; exec cat"]}
    file = file_of(tmp_path, **{"a/b": mini("echo"), "a": other, "off": {**other, "disabled": True}})
    assert call(file, "a/b/echo") == 0 and not started.exists()
    with pytest.raises(ConfigError, match=r"mcpServers\.off: the server is disabled"):
        call(file, "off/echo")
    with pytest.raises(ConfigError, match=r"^shout: no such tool \(tools: echo\)$"):
        call(file, "a/b/shout")
    with pytest.raises(ConfigError, match=r"no such tool \(did you mean 'echo'\? tools: echo\)$"):
        call(file, "a/b/ecko")


def test_a_server_that_is_none_is_told_with_the_one_that_was_meant(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^everythin/echo: no server 'everythin' \(did you mean 'everything'\?\)$"):
        call(file_of(tmp_path, everything=mini("echo")), "everythin/echo")


def test_a_tool_that_is_not_there_is_told_under_the_key_of_its_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = mini("echo", disabledTools=["ecko"], tools={"deny": ["echo"]})
    assert tools(file_of(tmp_path, a=both)) == 2
    assert "mcpServers.a.tools.deny: the server has no tool 'ecko'" in capsys.readouterr().err


def test_a_call_for_which_there_is_no_tool_says_what_is_wrong_with_who_may_have_it(tmp_path: Path) -> None:
    file = file_of(tmp_path, well=mini("echo"), typo=BROKEN["typo"], gone=BROKEN["gone"])
    with pytest.raises(ConfigError) as caught:
        call(file, "shout")
    assert [fault.key for fault in faults_of(caught.value)] == ["shout", "mcpServers.typo.comand", "mcpServers.gone"]
    with pytest.raises(ConfigError, match=r"^[^\n]*mcpServers\.typo\.comand: unknown key[^\n]*$"):
        call(file, "typo/shout")
    with pytest.raises(ConfigError, match=r"^[^\n]*mcpServers\.gone: cannot start[^\n]*$"):
        call(file, "gone/shout")


def test_a_lock_is_written_of_what_runs_and_the_rest_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, lock = file_of(tmp_path, well=mini("echo"), **BROKEN), tmp_path / "tools.yaml"
    assert tool_config([file], lock, as_json=True) == 2
    assert [entry.definition.server for entry in read_lock(lock)] == ["well"]
    out, err = capsys.readouterr()
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(json.loads(out.splitlines()[-1])["left_out"]) == len(errors) == len(BROKEN)
    assert all(f"mcpServers.{server}" in err for server in BROKEN)
    with pytest.raises(ConfigError, match="no such program"):
        tool_config([file_of(tmp_path, gone=BROKEN["gone"])], tmp_path / "x", as_json=True)


REMEDIES: dict[str, tuple[dict[str, Any], str]] = {
    "one string": (
        {"command": "npx -y @foo/bar --key hunter2"},
        r"'npx': its arguments are in command.* \(write .*\"args\": \[",
    ),
    "directory": ({"command": "/tmp"}, r"'/tmp': it is a directory \(name the program in it\)"),
    "a file": ({"command": MINI}, r"it is not executable \(chmod"),
    "npx": ({"command": "npx", "env": {"PATH": "/nowhere"}}, r"no such program \(install Node.js, or write its whole"),
    "home": ({"command": "~/x"}, r"write \$\{HOME\} for ~"),
    "cat": ({"command": "cat"}, r"'cat' is not an MCP server"),
    "mute": (mini("mute", start_timeout_s=1), r"did not finish its handshake in 1 s.*\(start it by hand"),
    "little": (
        mini("mute", start_timeout_s=1, scope="process", max_memory_mb=64),
        r"\(it may need more than max_memory_mb: 64",
    ),
    "url": ({"url": "http://127.0.0.1:9/mcp"}, r"\(nothing answers there: start the server, or correct url\)"),
}


def test_each_fault_comes_with_a_remedy_that_helps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = file_of(tmp_path, **{name: entry for name, (entry, _) in REMEDIES.items()})
    assert tools(file, as_json=True) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert "hunter2" not in "".join(lines)
    for line, (name, (_, said)) in zip(lines, REMEDIES.items(), strict=True):
        assert f"mcpServers.{name}: " in line
        assert re.search(said, line), line
