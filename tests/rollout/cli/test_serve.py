"""`mcp-rollout serve` as its operators see it: what it refuses at its start, and how it ends."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.cli.serve import serve

ROOT = Path(__file__).parents[3]
COMMAND = Path(sys.executable).with_name("mcp-rollout")


@pytest.fixture
def servers(tmp_path: Path) -> Path:
    file = tmp_path / "servers.json"
    entry = {"command": sys.executable, "args": ["-I", "-S", str(ROOT / "tests/gateway/mini_server.py"), "echo"]}
    file.write_text(json.dumps({"mcpServers": {"mini": entry}}))
    return file


def test_after_sigterm_it_leases_no_more_and_ends_once_its_leases_have(servers: Path) -> None:
    argv = [COMMAND, "serve", servers, "--no-token", "--drain-s", "100"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as program, httpx2.Client(timeout=60) as http:
        assert program.stdout is not None
        try:
            url = program.stdout.readline().strip()

            def ask(method: str, params: dict[str, Any], **meta: str) -> httpx2.Response:
                tagged = {f"mcp-rollout/{name}": value for name, value in meta.items()}
                params = {**params, "_meta": tagged}
                return http.post(url, json={"jsonrpc": "2.0", "id": 1, "method": method, "params": params})

            opening = {"key": "a", "trajectory": "a", "seed": 1}
            while not (found := ask("mcp-rollout/leases/open", opening).json()["result"])["granted"]:
                pass  # each request waits for a while at the host
            program.send_signal(signal.SIGTERM)
            while http.get(url.replace("/mcp", "/health")).status_code == 200:
                pass
            assert ask("mcp-rollout/leases/open", {**opening, "key": "b", "trajectory": "b"}).status_code == 503
            call = {"name": "echo", "arguments": {"text": "plum"}}
            answer = ask("tools/call", call, lease=found["lease"], call="1").json()
            assert answer["result"]["content"][0]["text"] == "plum"
            ask("mcp-rollout/leases/close", {}, lease=found["lease"])
            assert program.wait(timeout=60) == 0
        finally:
            program.kill()


def test_without_a_token_file_it_answers_those_alone_who_know_the_token_that_it_prints(servers: Path) -> None:
    argv = [COMMAND, "serve", servers]
    with (
        subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program,
        httpx2.Client(timeout=60) as http,
    ):
        assert program.stdout is not None and program.stderr is not None
        try:
            assert program.stderr.readline() == "starting mini: the address follows once they are ready\n"
            url, header = program.stdout.readline().strip(), program.stdout.readline().strip()
            asked = {"jsonrpc": "2.0", "id": 1, "method": "mcp-rollout/leases/catalogue", "params": {}}
            for guess in ({}, {"authorization": "Bearer guess"}):
                assert http.post(url, json=asked, headers=guess).status_code == 401
                assert http.get(url.replace("/mcp", "/metrics"), headers=guess).status_code == 401
            name, value = header.split(": ")
            assert "mini" in http.post(url, json=asked, headers={name: value}).json()["result"]["servers"]
        finally:
            program.kill()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"no_token": True, "token_file": "a token of 16 characters"}, "--no-token: there are tokens as well"),
        ({"no_token": True, "host": "0.0.0.0"}, "0.0.0.0 is reachable from other machines, and there is no token"),
        ({"host": "0.0.0.0"}, "0.0.0.0 is reachable from other machines, and there is no token"),
        ({"token_file": "missing"}, "missing: cannot be read"),
        ({"token_file": "# none\n"}, "has no token"),
        ({"token_file": "short\n"}, "a token is shorter than 16 characters"),
        ({"port": 70_000}, "port: must be less than or equal to 65535"),
        ({"idle_s": 0}, "idle_s: must be greater than 0"),
    ],
)
def test_what_cannot_be_served_is_one_message(
    servers: Path, tmp_path: Path, given: dict[str, Any], problem: str
) -> None:
    if "token_file" in given:
        file = tmp_path / "tokens"
        if given["token_file"] != "missing":
            file.write_text(given["token_file"])
        given = given | {"token_file": file if file.exists() else tmp_path / "missing"}
    with pytest.raises(ConfigError, match=problem):
        serve(**{"file": str(servers), "host": "127.0.0.1", "port": 0, **given})


def test_a_port_that_is_taken_is_named(servers: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        argv = [COMMAND, "serve", servers, "--port", str(port)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False)
    _, line = done.stderr.splitlines()
    assert done.returncode != 0 and f"--port: cannot listen at 127.0.0.1 port {port}" in line and "(" in line
