"""What servers, policies and their records write acts on no terminal: each command, with one server that tries."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from acting_texts import ACTS

from mcp_rollout.rollout.cli.app import main
from mcp_rollout.rollout.trace.store import read_traces

SERVER = Path(__file__).parents[1] / "support/acting_texts.py"
COMMAND = Path(sys.executable).with_name("mcp-rollout")
# Controls but line feeds and tabs, bidirectional controls, zero-width characters and tags.
ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u206f\U000e0000-\U000e007f]")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("acting") / "acting.yaml"
    entry = {"command": "${python}", "args": [str(SERVER)], "scope": "shared", "trusted": True}
    keys: dict[str, Any] = {"servers": {"acting": entry}, "system": {"instructions_of": "acting"}}
    keys |= {"reward": {"server": "acting", "parts": ["part", f"part{ACTS}"]}, "tasks": {"server": "acting"}}
    file.write_text(yaml.safe_dump(keys))
    return file


@pytest.fixture(scope="module")
def traces(environment: Path) -> Path:
    out = environment.parent / "traces"
    argv = [COMMAND, "run", environment, "--engine", "expert", "-n", "1", "--out", out]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False)
    assert "traces in" in done.stdout, done.stderr
    assert not ACTING.search(done.stdout + done.stderr)
    assert all(ACTS in str(trace.messages[-1]["content"]) for trace in read_traces(out))
    return out


def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    monkeypatch.setattr(sys, "argv", ["mcp-rollout", *map(str, argv)])
    with pytest.raises(SystemExit):
        main()
    return "".join(capsys.readouterr())


@pytest.mark.parametrize(
    "arguments",
    [
        ("tools",),
        ("tools", "--json"),
        ("call", "read"),
        ("call", "read", "--json"),
        ("call", "refuse"),
        ("call", "die"),
        ("call", f"no {ACTS}"),
        ("check-env",),
        ("tool-config", "-o", os.devnull),
        pytest.param(("doctor",), marks=pytest.mark.full),
    ],
    ids=lambda given: " ".join(given)[:20],
)
def test_what_a_server_says_is_printed_as_text(
    arguments: tuple[str, ...],
    environment: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command, *rest = arguments
    printed = said(monkeypatch, capsys, command, environment, *rest)
    assert printed and not ACTING.search(printed)


@pytest.mark.parametrize(
    "arguments",
    [
        "show --row 0",
        "show --row 0 --tokens",
        "show --row 0 --json",
        "grep read",
        "ls",
        "ls --json",
        "stats",
        "explain",
    ],
)
def test_what_a_trajectory_holds_is_printed_as_text(
    arguments: str, traces: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *rest = arguments.split()
    printed = said(monkeypatch, capsys, "trace", command, traces, *rest)
    assert printed and not ACTING.search(printed)


def test_the_error_of_a_server_that_does_not_start_is_printed_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "servers.json"
    entry = {"command": sys.executable, "args": [str(SERVER), "dies"]}
    file.write_text(json.dumps({"mcpServers": {"dies": entry}}))
    printed = said(monkeypatch, capsys, "call", file, "dies/read")
    assert printed.startswith("error: ") and "no licence [red]marked" in printed and not ACTING.search(printed)


def test_json_reads_back_as_the_server_wrote_it(
    environment: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["mcp-rollout", "call", str(environment), "read", "--json"])
    with pytest.raises(SystemExit):
        main()
    assert json.loads(capsys.readouterr().out)["text"] == f"read {ACTS}\nsecond line {ACTS}"


@pytest.mark.parametrize(
    "arguments", [("tools", "ENV"), ("call", "ENV", "read"), ("trace", "show", "OUT", "--row", "0")]
)
def test_a_terminal_gets_no_sequence_but_the_programs_own_colours(
    arguments: tuple[str, ...], environment: Path, traces: Path
) -> None:
    places = {"ENV": str(environment), "OUT": str(traces)}
    argv = [str(COMMAND), *(places.get(each, each) for each in arguments)]
    ours, theirs = pty.openpty()
    os.set_inheritable(theirs, True)
    with subprocess.Popen(argv, stdout=theirs, stderr=theirs, env=os.environ | {"TERM": "xterm-256color"}) as process:
        os.close(theirs)
        written = b""
        while part := _read(ours):
            written += part
        process.wait(timeout=100)
    os.close(ours)
    text = written.decode().replace("\r\n", "\n")
    assert "\x1b[8m" not in text
    shown = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert not ACTING.search(shown) and "<U+001B>" in shown
    assert "[red]marked[/red][link=http://example.org]up" in re.sub(r"[\s│]", "", shown)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # EIO: the program has closed its end
        return b""
