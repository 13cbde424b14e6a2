"""Files people have are read; what is wrong with one is a single message with file, key and remedy."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from mcp_rollout import ConfigError, ServerConfig, load_servers
from mcp_rollout.gateway.config.models import Kind
from mcp_rollout.gateway.config.pydantic_errors import validate
from mcp_rollout.gateway.config.variables import child_env, expand
from mcp_rollout.gateway.types import Scope


def written(tmp_path: Path, data: Any, name: str = "servers.json") -> Path:
    path = tmp_path / name
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def test_a_desktop_clients_file_is_read_with_what_else_it_holds(tmp_path: Path) -> None:
    data = {
        "globalShortcut": "Alt+Space",
        "mcpServers": {
            "time": {"type": "stdio", "command": "uvx", "args": ["mcp-server-time"], "autoApprove": ["now"]},
            "docs": {"type": "http", "url": "https://example.com/mcp", "headers": {"X": "1"}, "timeout": 3},
            "off": {"command": "x", "disabled": True, "env": {"TOKEN": "${NOT_SET_ANYWHERE}"}},
        },
    }
    servers = load_servers(written(tmp_path, data)).servers
    assert {name: entry.kind for name, entry in servers.items()} == {"time": Kind.STDIO, "docs": Kind.HTTP}
    assert servers["time"].args == ("mcp-server-time",) and servers["time"].scope is Scope.SHARED


def test_an_editors_file_is_read(tmp_path: Path) -> None:
    data = {"inputs": [], "servers": {"time": {"type": "stdio", "command": "uvx"}}}
    assert load_servers(written(tmp_path, data, "mcp.json")).servers["time"].command == "uvx"


def test_our_yaml_adds_scope_roles_and_bounds(tmp_path: Path) -> None:
    text = """
    max_sessions: 8
    servers:
      world:
        command: ${python}
        args: [-m, world]
        env: {PORT: 80}
        scope: process
        min_ready: 2
        roles: {reset: clear_all}
        call_timeout_s: 5
    """
    config = load_servers(written(tmp_path, text, "servers.yaml"))
    world = config.servers["world"]
    assert (config.max_sessions, world.command, world.env, world.min_ready) == (8, sys.executable, {"PORT": "80"}, 2)
    assert world.roles == {"reset": "clear_all"} and world.call_timeout_s == 5


WORLD = {"command": "x"}
BAD: list[tuple[Any, str, str, str]] = [
    ('{"mcpServers": {', "line 1, column 17", "not valid JSON", "fix the syntax"),
    ({"name": {}}, "mcpServers", "no servers here", "expected"),
    ({"serverz": {}}, "serverz", "no servers here", "did you mean 'servers'?"),
    ({"mcpServer": {}}, "mcpServer", "no servers here", "did you mean 'mcpServers'?"),
    ({"mcpServers": []}, "mcpServers", "not a mapping of names", "expected NAME"),
    ({"mcpServers": {"w": "x"}}, "mcpServers.w", "not a mapping", "expected {command"),
    ({"mcpServers": {"w": {}}}, "mcpServers.w", "exactly one of command, url and factory; found none", "add a command"),
    ({"mcpServers": {"w": {**WORLD, "url": "http://x"}}}, "mcpServers.w", "found command and url", "keep one"),
    ({"mcpServers": {"w": {"comand": "x"}}}, "mcpServers.w.comand", "unknown key 'comand'", "did you mean 'command'?"),
    ({"mcpServers": {"w": {**WORLD, "zzz": 1}}}, "mcpServers.w.zzz", "unknown key 'zzz'", "known keys: args"),
    ({"mcpServers": {"w": {**WORLD, "scope": "proces"}}}, "mcpServers.w.scope", "got 'proces'", "correct"),
    ({"mcpServers": {"w": {**WORLD, "call_timeout_s": 0}}}, "mcpServers.w.call_timeout_s", "greater than 0", "correct"),
    ({"mcpServers": {"w": {**WORLD, "args": "-m x"}}}, "mcpServers.w.args", "must be a list of strings", "write ["),
    (
        {"mcpServers": {"w": {**WORLD, "min_ready": 1}}},
        "mcpServers.w",
        "min_ready needs scope: process",
        "remove min_ready",
    ),
    (
        {"mcpServers": {"w": {**WORLD, "max_processes": 1}}},
        "mcpServers.w",
        "max_processes needs scope",
        "remove max_processes",
    ),
    (
        {"mcpServers": {"w": {**WORLD, "scope": "process", "min_ready": 2, "max_processes": 1}}},
        "mcpServers.w",
        "min_ready is more than max_processes",
        "lower it",
    ),
    ({"mcpServers": {"w": {"url": "http://x", "max_cpu_s": 1}}}, "mcpServers.w", "need a command", "remove them"),
    (
        {"mcpServers": {"w": {**WORLD, "roles": {"rset": "x"}}}},
        "mcpServers.w.roles.rset",
        "unknown role",
        "did you mean",
    ),
    (
        {"mcpServers": {"w": {**WORLD, "roles": {"zzz": "x"}}}},
        "mcpServers.w.roles.zzz",
        "unknown role",
        "known roles: e",
    ),
    (
        {"mcpServers": {"w": {**WORLD, "roles": ["x"]}}},
        "mcpServers.w.roles",
        "must be a mapping",
        "write {NAME: VALUE}",
    ),
    ({"mcpServers": {"w": {"url": "example.com"}}}, "mcpServers.w", "http:// or https://", "correct"),
    ({"mcpServers": {"w": {"factory": "a.b"}}}, "mcpServers.w.factory", "package.module:function", "correct"),
    ({"mcpServers": {"w": {**WORLD, "type": "ftp"}}}, "mcpServers.w", "unknown transport 'ftp'", "correct"),
    ({"mcpServers": {"w": {**WORLD, "type": "http"}}}, "mcpServers.w", "type http needs a url", "remove type"),
    ({"mcpServers": {"w": {**WORLD, "headers": {"X": "hunter2"}}}}, "mcpServers.w", "headers needs a url", "remove h"),
    ({"mcpServers": {"w": {"url": "http://x", "args": ["hunter2"]}}}, "mcpServers.w", "args needs a command", "remove"),
    ({"mcpServers": {"w": {"command": ["npx", "hunter2"]}}}, "mcpServers.w.command", "is a list", "write the program"),
    ({"mcpServers": {"w": {"command": " "}}}, "mcpServers.w", "command is empty", "name the program"),
    ({"mcpServers": {" ": WORLD}}, "mcpServers. ", "a server without a name", "give it one"),
    ({"mcpServers": {}}, "mcpServers", "no servers here", "expected"),
    ({"mcpServers": {"w": {**WORLD, "disabled": True}}}, "mcpServers", "every server is disabled", "enable one"),
    ({"mcpServers": {"w": {**WORLD, "disabled": "yes"}}}, "mcpServers.w.disabled", "true or false", "correct"),
    ({"mcpServers": {"w": WORLD}, "servers": {"v": WORLD}}, "servers", "both mcpServers and servers", "move all"),
    (
        {"mcpServers": {"w": {**WORLD, "tools": {"change": {"a": {"name": "b c"}}}}}},
        "mcpServers.w.tools.change.a.name",
        "1 to 64 letters, digits, _ . and -, got 'b c'",
        "choose another",
    ),
    (
        {"mcpServers": {"w": WORLD}, "elicitation": "user"},
        "elicitation",
        "must be a mapping",
        "write {server: ..., timeout_s: ...}",
    ),
    (
        {"mcpServers": {"w": WORLD}, "lease_dir": {"template": "/no/such/place"}},
        "lease_dir.template",
        "no such directory",
        "make it",
    ),
    ('{"mcpServers": {"w": {"command": "x"}, "w": {"url": "y"}}}', "mcpServers.w", "duplicate key", "only the last"),
    ('{"mcpServers": {"w": {"command": "C:\\Users"}}}', "line 1, column 37", "Invalid", "write each backslash twice"),
    ("", "line 1, column 1", "the file is empty", "expected"),
    ({"mcpServers": {"w": {"command": "${NO_SUCH}"}}}, "mcpServers.w.command", "NO_SUCH is not set", "set NO_SUCH"),
    (
        {"mcpServers": {"w": {**WORLD, "env": {"K": "${input:k}"}}}},
        "mcpServers.w.env.K",
        "${input:k}",
        "set the environment variable K",
    ),
    ({"mcpServers": {"w": {"command": "${command:x}"}}}, "mcpServers.w.command", "${command:x}", "use ${NAME}"),
    ({"servers": {"w": WORLD}, "max_session": 3}, "max_session", "unknown key", "did you mean 'max_sessions'?"),
]


@pytest.mark.parametrize(("data", "key", "problem", "remedy"), BAD)
def test_a_wrong_file_is_one_message_with_file_key_and_remedy(
    tmp_path: Path, data: Any, key: str, problem: str, remedy: str
) -> None:
    path = written(tmp_path, data)
    with pytest.raises(ConfigError) as caught:
        load_servers(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: {key}") and problem in message and f"({remedy}" in message
    assert "\n" not in message and "pydantic" not in message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"servers.json: no such file \(check the path\)"):
        load_servers(tmp_path / "servers.json")


def test_yaml_faults_have_a_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"line 3, column 1: not valid YAML"):
        load_servers(written(tmp_path, "servers:\n  a: [\n", "servers.yaml"))


@pytest.mark.parametrize(
    ("name", "text", "where"),
    [
        (
            "servers.yaml",
            'servers:\n  a: {command: "\\ud83d"}\n',
            "line 2, column 16: not valid YAML: half of a surrogate",
        ),
        (
            "servers.json",
            r'{"mcpServers": {"a": {"command": "\ud83d"}}}',
            "has half of a surrogate pair, which is not text",
        ),
    ],
)
def test_half_a_surrogate_pair_is_not_text(tmp_path: Path, name: str, text: str, where: str) -> None:
    with pytest.raises(ConfigError, match=where):
        load_servers(written(tmp_path, text, name))


@pytest.mark.parametrize("field", [{"env": {"TOKEN": ["hunter2"]}}, {"headers": {"X": True}}, {"url": "hunter2"}])
def test_what_may_be_secret_is_not_quoted(field: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(ServerConfig, {"command": "x", **field}, file="f")
    assert "hunter2" not in str(caught.value) and "True" not in str(caught.value)


def test_variables_are_expanded_wherever_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "t")
    monkeypatch.delenv("NO_SUCH", raising=False)
    value = {"a": ["${TOKEN}/${env:TOKEN}", "${NO_SUCH:-d}"], "b": "${lease.dir}/x", "c": "$TOKEN {TOKEN} ${TOKEN"}
    assert expand(value) == {"a": ["t/t", "d"], "b": "${lease.dir}/x", "c": "$TOKEN {TOKEN} ${TOKEN"}
    assert expand("${python}") == sys.executable


def test_a_child_inherits_an_allow_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", {"PATH": "p", "LC_ALL": "C", "HF_TOKEN": "s", "HTTPS_PROXY": "u:p@h"})
    assert child_env({"OWN": "o"}) == {"PATH": "p", "LC_ALL": "C", "OWN": "o"}
