"""`mcp-rollout doctor` as people and programs use it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import ConfigError
from rollout.cli.doctor import DoctorOptions, examine_file

ROOT = Path(__file__).parents[3]
COMMAND = Path(sys.executable).with_name("mcp-rollout")
STATE = str(ROOT / "tests/support/state_server.py")


def doctor(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "COLUMNS": "80"}
    argv = [COMMAND, "doctor", *arguments]
    return subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=100, check=False)


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


def test_programs_get_every_server_and_a_status_that_says_whether_all_are_fit(servers: Path) -> None:
    done = doctor(servers, "--json", "--allow-writes")
    record = json.loads(done.stdout)
    found = {report["server"]: report for report in record["servers"]}
    assert (done.returncode, record["fit"], list(found)) == (1, False, ["cell", "pure", "gone"])
    assert [report["fit"] for report in found.values()] == [True, True, False]
    assert found["cell"]["advice"]["scope"] == "process" and found["pure"]["advice"]["scope"] == "shared"
    assert found["gone"]["problems"] == ["cannot start 'no-such-program': no such program"]
    assert {*found["cell"]} == {*found["gone"]}
    assert found["cell"]["tools"][0]["tokens"] is None and found["cell"]["start"]["n"] >= 3


def test_people_get_a_table_that_fits_eighty_columns(servers: Path) -> None:
    done = doctor(servers)
    lines = done.stdout.splitlines()
    assert done.returncode == 1 and max(map(len, lines)) <= 80
    assert lines[0].split() == ["server", "via", "protocol", "start", "call", "tools", "tokens", "scope", "fit"]
    assert [line.split()[0] for line in lines[1:4]] == ["cell", "pure", "gone"]
    assert "2025-06-18" in lines[1] and "not called" in done.stdout and "…" not in lines[1]


def test_one_server_can_be_chosen_and_a_fit_one_ends_well(servers: Path) -> None:
    done = doctor(servers, "--server", "pure", "--call", 'add={"a": 1, "b": 2}', "--json")
    (report,) = json.loads(done.stdout)["servers"]
    assert (done.returncode, report["server"], report["withheld"]) == (0, "pure", ["shout"])


@pytest.mark.parametrize(
    ("chosen", "calls", "said"),
    [
        (("cel",), (), r"no server 'cel' \(servers: cell, pure, gone\)"),
        ((), ("put={",), "the arguments are not JSON"),
        ((), ("put=[]",), "not a JSON object"),
        ((), ("other/put={}",), "no server 'other'"),
        (("cell",), ("putt={}",), r"no server has a tool 'putt' \(get, put\)"),
    ],
)
def test_bad_use_is_a_message_with_the_remedy(
    servers: Path, chosen: tuple[str, ...], calls: tuple[str, ...], said: str
) -> None:
    options = DoctorOptions(servers=chosen, tokenizer=None, calls=calls, allow_writes=False)
    with pytest.raises(ConfigError, match=said):
        examine_file(str(servers), ROOT, options, as_json=True)


def test_bad_use_ends_with_status_two(servers: Path) -> None:
    done = doctor(servers, "--server", "cel")
    assert done.returncode == 2 and "no server 'cel'" in done.stderr and "Traceback" not in done.stderr


TEMPLATE = "{% for tool in tools or [] %}<t> {{ tool | tojson }} {% endfor %}{{ messages[0].content }}"


@pytest.mark.verl
def test_tools_are_counted_as_the_chat_template_renders_them(tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    from rollout.verl.chat_tokens import ChatTokens

    plain = Tokenizer(WordLevel({"?": 0}, unk_token="?"))
    plain.pre_tokenizer = WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    wrapped = PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="?")
    wrapped.save_pretrained(tmp_path / "plain")
    wrapped.chat_template = TEMPLATE
    wrapped.save_pretrained(tmp_path / "chat")
    tools = [{"type": "function"}, {"type": "other"}]
    assert ChatTokens(str(tmp_path / "chat")).tools(tools) == 2 * len('<t> {"type": "x"}'.split())
    assert ChatTokens(str(tmp_path / "plain")).tools(tools) is None
    assert ChatTokens(str(tmp_path / "plain")).text("three short words") == 3
    with pytest.raises(ConfigError, match="no tokenizer in"):
        ChatTokens(str(tmp_path / "nothing"))
