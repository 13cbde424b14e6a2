"""No command writes a secret of its environment, its configuration or its requests, also where something fails."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
import yaml

from mcp_rollout.rollout.cli.app import main

SUPPORT = Path(__file__).parents[1] / "support"
COMMAND = Path(sys.executable).with_name("mcp-rollout")
PLANTED = {
    name: f"planted-{name}-0123456789"
    for name in ("entry", "password", "option", "header", "query", "userinfo", "process", "engine", "host", "bearer")
}
FORMS = {
    form: name
    for name, secret in PLANTED.items()
    for form in (secret, secret[8:], quote(secret), base64.b64encode(secret.encode()).decode())
}


@pytest.fixture(autouse=True)
def in_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_API_KEY", PLANTED["process"])
    monkeypatch.setenv("ENGINE_KEY", PLANTED["engine"])
    monkeypatch.setenv("MCP_ROLLOUT_TOKEN", PLANTED["host"])
    monkeypatch.setenv("SHOP_KEY_HERE", PLANTED["entry"])
    monkeypatch.syspath_prepend(str(SUPPORT))
    monkeypatch.chdir(tmp_path)


def entry(*arguments: str) -> dict[str, Any]:
    given = [str(SUPPORT / "telling_server.py"), *arguments, "--token", PLANTED["option"]]
    secrets = {"SHOP_API_KEY": "${SHOP_KEY_HERE}", "PLAIN_PASSWORD": PLANTED["password"]}
    return {"command": sys.executable, "args": given, "env": secrets, "scope": "shared", "trusted": True}


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    return written(tmp_path / "telling.yaml", {})


def written(file: Path, more: dict[str, Any]) -> Path:
    keys: dict[str, Any] = {"servers": {"telling": entry()}, "reward": {"server": "telling"}}
    file.write_text(yaml.safe_dump(keys | {"tasks": {"server": "telling"}} | more))
    return file


class Telling(BaseHTTPRequestHandler):
    """Refuses every request, and quotes it."""

    def do_POST(self) -> None:
        body = f"no: {self.path} {dict(self.headers)}".encode()
        self.send_response(403)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST

    def log_message(self, format: str, *args: Any) -> None: ...


@contextmanager
def telling_url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Telling) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def found_in(text: str) -> dict[str, str]:
    """The planted secrets in a text, by what was found."""
    return {form: name for form, name in FORMS.items() if form in text}


# As the shell splits them. ENV, FAILING, SERVERS and WRONG are files of the test, URL is a server that quotes requests.
FAILURES = """
tools SERVERS
tools WRONG
call ENV die
run FAILING --engine random -n 1 --out failed
run ENV --engine URL/v1 --api-key-env ENGINE_KEY --model m -n 1 --out engine
run ENV --hosts URL --engine expert --out hosted
trace show failed --row 0
trace explain failed
"""
COMMANDS = """
tools SERVERS --json
tool-config SERVERS -o without-some.yaml
tool-config ENV -o lock.yaml
call ENV read
call ENV refuse
call ENV breaks
call ENV unknown
call ENV read {
call SERVERS dies/read
call SERVERS far/read
check-env ENV
data ENV -o rows.parquet
run ENV --engine expert -n 1 --out runs --record cassette.jsonl
rescore runs ENV
rescore runs ENV --cassette cassette.jsonl --out again
compare runs runs-rescored
trace ls runs
trace show runs --row 0
trace show runs --row 0 --json
trace show runs --row 0 --tokens
trace show runs --where true --full
trace stats runs
trace watch runs --once
trace export runs --sft -o sft.jsonl
trace export runs --parquet -o runs.parquet
doctor SERVERS
configs configs
new-server shop
"""


@pytest.mark.parametrize("lines", [FAILURES, pytest.param(COMMANDS, marks=pytest.mark.full)], ids=["failing", "all"])
def test_no_command_writes_a_secret(
    lines: str, environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    failing = written(tmp_path / "failing.yaml", {"agent": "telling_server:FailingAgent"})
    servers, wrong = tmp_path / "servers.json", tmp_path / "wrong.json"
    with telling_url() as url:
        address = url.replace("http://", f"http://user:{PLANTED['userinfo']}@") + f"?api_key={PLANTED['query']}"
        far = {"url": address, "headers": {"Authorization": f"Bearer {PLANTED['header']}"}}
        servers.write_text(json.dumps({"mcpServers": {"near": entry(), "far": far, "dies": entry("--die")}}))
        unreadable = {"far": {**far, "headers": PLANTED["header"]}, "near": {**entry(), "env": PLANTED["entry"]}}
        wrong.write_text(json.dumps({"mcpServers": unreadable}))
        given = {"ENV": environment, "FAILING": failing, "SERVERS": servers, "WRONG": wrong, "URL": url}
        for line in lines.strip().splitlines():
            argv = [str(given.get(word, word.replace("URL", url))) for word in line.split()]
            monkeypatch.setattr(sys, "argv", ["mcp-rollout", *argv])
            with pytest.raises(SystemExit):
                main()
            said = "".join(capfd.readouterr())
            assert said and found_in(said) == {}, line
            assert "Traceback" not in said or "FAILING" in line, said
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path not in given.values()]
    leaks = {path.name: found_in(path.read_bytes().decode(errors="replace")) for path in files}
    assert leaks and not any(leaks.values())


def test_serve_writes_no_bearer_and_no_secret_of_its_servers(environment: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(PLANTED["bearer"])
    argv = [COMMAND, "serve", environment, "--token-file", tokens, "--drain-s", "1"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(argv, **pipes) as program, httpx2.Client(timeout=60) as http:
        assert program.stdout is not None
        try:
            url = next(line.strip() for line in program.stdout if line.startswith("http"))
            own = {"authorization": f"Bearer {PLANTED['bearer']}"}
            accepted = {"accept": "application/json, text/event-stream", "content-type": "application/json"}

            def post(body: str, **more: str) -> str:
                return http.post(url, content=body, headers={**accepted, **own, **more}).text

            def ask(method: str, params: dict[str, Any], **meta: str) -> dict[str, Any]:
                tagged = {f"mcp-rollout/{name}": value for name, value in meta.items()}
                message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": tagged}}
                return json.loads(post(json.dumps(message)))

            opening = {"key": "a", "trajectory": "a", "seed": 1}
            while not (found := ask("mcp-rollout/leases/open", opening)["result"])["granted"]:
                pass  # each request waits for a while at the host
            said = [str(ask("mcp-rollout/leases/catalogue", {}))]
            for number, tool in enumerate(("read", "refuse", "breaks", "die", "read", "unknown")):
                call = {"name": tool, "arguments": {}}
                said.append(str(ask("tools/call", call, lease=found["lease"], call=str(number))))
            for method, params in (
                ("mcp-rollout/leases/open", '{"key": "b", "trajectory": "b", "seed": 0, "wait_s": NaN}'),
                ("mcp-rollout/leases/open", '{"_meta": 5}'),
                ("tools/call", '{"name": "read", "arguments": 5}'),
                ("initialize", "{}"),
                ("initialize", "{"),
            ):
                said.append(post(f'{{"jsonrpc": "2.0", "id": 1, "method": "{method}", "params": {params}}}'))
            said.append(post("{}", authorization=f"Bearer {PLANTED['bearer']}x"))
            program.terminate()
            said.append(program.stdout.read())
            assert program.wait(timeout=60) == 0
        finally:
            program.kill()
    assert {text: leaks for text in said if (leaks := found_in(text))} == {}
