"""Files written for other programs: each entry works here, or one message says why it does not."""

import json
from pathlib import Path
from typing import Any

import pytest

from mcp_rollout import ConfigError, load_servers
from mcp_rollout.gateway.config.servers_file import read_servers
from mcp_rollout.gateway.errors import faults_of, printed

FROM_AN_EDITOR = """\ufeff{
  // what the editor asks for
  "inputs": [
    {"type": "promptString", "id": "api-key", "description": "Key", "password": true},
    {"type": "promptString", "id": "region", "default": "eu"},
  ],
  "servers": {
    "notes": {
      "type": "stdio",
      "command": "${workspaceFolder}/bin/notes", /* relative to the workspace */
      "args": ["--home", "${userHome}", "--url", "https://example.com//x", "${workspaceFolderBasename}"],
      "env": {"KEY": "${input:api-key}", "REGION": "${input:region}", "NAME": "${env:PLUM}", "B": "own"},
      "envFile": "${workspaceFolder}/.env",
      "dev": {"watch": "src/**"},
    },
    "docs": {"url": "https://example.com/mcp", "type": "http", "headers": {"Authorization": "Bearer ${input:api-key}"}},
  },
}
"""


def written(file: Path, data: Any) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return file


def test_an_editors_file_works_as_it_does_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "k-1")
    monkeypatch.setenv("PLUM", "plum")
    (tmp_path / ".env").write_text("# comment\nexport A=1\nB='two # words'\nC=3 # three\n")
    servers = load_servers(written(tmp_path / ".vscode" / "mcp.json", FROM_AN_EDITOR)).servers
    notes = servers["notes"]
    assert notes.command == f"{tmp_path}/bin/notes"
    assert notes.args == ("--home", str(Path.home()), "--url", "https://example.com//x", tmp_path.name)
    own = {"KEY": "k-1", "REGION": "eu", "NAME": "plum", "B": "own"}
    assert notes.env == {"A": "1", "C": "3", **own}  # what the entry says itself wins
    assert servers["docs"].headers == {"Authorization": "Bearer k-1"}


def test_servers_of_an_editors_settings_are_found(tmp_path: Path) -> None:
    settings = {"editor.fontSize": 12, "mcp": {"inputs": [], "servers": {"a": {"command": "x"}, "b": {}}}}
    found = read_servers(written(tmp_path / "settings.json", settings))
    assert [*found.config.servers] == ["a"] and found.entries.key == "mcp.servers"
    assert "settings.json: mcp.servers.b: a server needs exactly one" in str(found.entries.faults["b"])


def test_tools_that_another_client_hides_or_picks_are_hidden_or_picked(tmp_path: Path) -> None:
    entries = {
        "a": {"command": "x", "disabledTools": ["rm"], "tools": {"deny": ["mv"]}},
        "b": {"command": "x", "includeTools": ["ls"], "excludeTools": ["cp"]},
        "c": {"command": "x", "tools": ["*"], "disabledTools": ["rm"]},
    }
    servers = load_servers(written(tmp_path / "s.json", {"mcpServers": entries})).servers
    assert (servers["a"].tools.allow, servers["a"].tools.deny) == (None, ("mv", "rm"))
    assert (servers["b"].tools.allow, servers["b"].tools.deny) == (("ls",), ("cp",))
    assert servers["c"].tools.shows("ls") and not servers["c"].tools.shows("rm")


def test_other_words_for_the_same_thing_are_read(tmp_path: Path) -> None:
    entries = {
        "a": {"serverUrl": "https://a.example/mcp", "alwaysAllow": ["x"], "trust": True},
        "b": {"url": "https://b.example/sse", "transportType": "sse"},
        "c": {"command": "x", "enabled": False},
        "d": {"url": "https://d.example", "env": {}, "args": []},
    }
    config = load_servers(written(tmp_path / "s.json", {"mcpServers": entries}))
    assert {name: str(entry.kind) for name, entry in config.servers.items()} == {"a": "http", "b": "sse", "d": "http"}


def test_what_does_nothing_here_is_told_with_its_place_and_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load_servers(written(tmp_path / "s.json", {"mcpServers": {"a": {"command": "x", "timeout": 30}}}))
    said = capsys.readouterr().out
    assert "mcpServers.a.timeout" in said and "call_timeout_s" in said and "s.json" in said


BAD: list[tuple[dict[str, Any], str]] = [
    ({"command": "x", "envFile": "no.env"}, r"w\.envFile: .*no\.env cannot be read: No such file.* \(correct the path"),
    ({"command": "x", "envFile": 3}, r"w\.envFile: must be the path"),
    ({"command": "x", "envFile": "s.json"}, r"w\.envFile: .*s\.json, line 1 is not NAME=VALUE"),
    ({"command": "x", "disabledTools": "rm"}, r"w\.disabledTools: must be a list of strings"),
    ({"command": "x", "includeTools": ["a"], "tools": ["b"]}, r"w\.includeTools: has the same meaning as tools"),
    ({"url": "http://x", "httpUrl": "http://y"}, r"w\.httpUrl: has the same meaning as url \(remove httpUrl\)"),
    ({"command": "x", "env": {"K": "${input:my-key}"}}, r"w\.env\.K: .*\$\{input:my-key\}.*set the .* variable MY_KEY"),
    ({"command": "x", "enabled": "no"}, r"w\.enabled: must be true or false"),
    (
        {"command": "x", "scope": 3, "args": 4},
        r"(?s)w\.args: must be a list of strings.*\n.*w\.scope: must be 'shared'",
    ),
]


@pytest.mark.parametrize(("entry", "said"), BAD)
def test_what_cannot_work_is_one_message_each(tmp_path: Path, entry: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_servers(written(tmp_path / "s.json", {"mcpServers": {"w": entry}}))


def test_every_wrong_entry_is_told_and_costs_none_of_the_others(tmp_path: Path) -> None:
    entries = {"a": {"comand": "x"}, "b": {"command": "x"}, "c": {"command": "${NO_SUCH}"}, "d": 3}
    file = written(tmp_path / "s.json", {"mcpServers": entries})
    with pytest.raises(ConfigError) as caught:
        load_servers(file)
    keys = [fault.key for fault in faults_of(caught.value)]
    assert keys == ["mcpServers.a.comand", "mcpServers.c.command", "mcpServers.d"]
    assert len(str(caught.value).splitlines()) == len(keys)
    found = read_servers(file)
    assert ([*found.config.servers], [*found.entries.faults]) == (["b"], ["a", "c", "d"])


def test_every_fault_of_one_entry_is_reported_once(tmp_path: Path) -> None:
    env = {"A": "${NO_A}", "B": "${NO_B}", "C": "set"}
    entry = {"command": "x", "args": ["${NO_C}"], "env": env, "headers": {"X": "y"}, "min_ready": 1, "comand": "x"}
    with pytest.raises(ConfigError) as caught:
        load_servers(written(tmp_path / "s.json", {"mcpServers": {"w": entry}}))
    assert [fault.key for fault in faults_of(caught.value)] == [
        "mcpServers.w.args",
        "mcpServers.w.env.A",
        "mcpServers.w.env.B",
        "mcpServers.w.comand",
    ]
    del entry["comand"]
    with pytest.raises(ConfigError) as caught:
        load_servers(written(tmp_path / "s.json", {"mcpServers": {"w": {**entry, "args": [], "env": {}}}}))
    said = [fault.problem for fault in faults_of(caught.value)]
    assert said == ["headers needs a url, and the entry has a command", "min_ready needs scope: process"]


def test_the_faults_of_a_file_are_those_of_its_entries_and_of_what_is_around_them(tmp_path: Path) -> None:
    around = {"sampling": {"url": "${NO_URL}", "model": "${NO_MODEL}"}, "max_sessions": 0, "shout": 1}
    file = written(tmp_path / "s.json", {"servers": {"a": {"comand": "x"}, "b": {"command": "x"}}, **around})
    with pytest.raises(ConfigError) as caught:
        read_servers(file)
    assert [fault.key for fault in faults_of(caught.value)] == [
        "servers.a.comand",
        "sampling.url",
        "sampling.model",
        "max_sessions",
        "shout",
    ]


def test_of_many_faults_the_first_are_worded_and_the_others_counted(tmp_path: Path) -> None:
    entries = {f"s{number}": {"comand": "x"} for number in range(50)}
    with pytest.raises(ConfigError) as caught:
        load_servers(written(tmp_path / "s.json", {"mcpServers": entries}))
    assert len(faults_of(caught.value)) == 50
    lines = str(caught.value).splitlines()
    assert len(lines) == 21 and lines[-1] == "and 30 more problems"
    assert printed(caught.value).splitlines() == [*(f"error: {line}" for line in lines[:-1]), lines[-1]]


def test_a_server_that_others_lean_on_is_told_to_be_wrong_itself(tmp_path: Path) -> None:
    file = written(
        tmp_path / "s.json", {"servers": {"user": {}, "b": {"command": "x"}}, "elicitation": {"server": "user"}}
    )
    with pytest.raises(ConfigError, match=r"servers\.user: a server needs exactly one"):
        read_servers(file)


def test_comments_and_commas_within_strings_stay(tmp_path: Path) -> None:
    text = '{"mcpServers": {"w": {"command": "a // b /* c */", "args": [",]", "\\\\", ",}",],},},}'
    world = load_servers(written(tmp_path / "s.jsonc", text)).servers["w"]
    assert (world.command, world.args) == ("a // b /* c */", (",]", "\\", ",}"))


def test_a_key_that_stands_twice_is_told_wherever_it_stands(tmp_path: Path) -> None:
    text = '{"mcpServers": {"w": {"command": "x", "env": {"A": "1", "A": "2"}}, "w": {"command": "x"}}, "x": 1, "x": 2}'
    with pytest.raises(ConfigError) as caught:
        load_servers(written(tmp_path / "s.json", text))
    assert [fault.key for fault in faults_of(caught.value)] == ["x", "mcpServers.w"]
    with pytest.raises(ConfigError, match=r"line 3, column 3: not valid YAML: duplicate key 'a'"):
        load_servers(written(tmp_path / "s.yaml", "servers:\n  a: {command: x}\n  a: {command: y}\n"))


def test_a_file_in_another_encoding_is_told(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"mcpServers": {}}', encoding="utf-16")
    with pytest.raises(ConfigError, match=r"is not UTF-8 text \(save it as UTF-8\)"):
        load_servers(tmp_path / "s.json")
