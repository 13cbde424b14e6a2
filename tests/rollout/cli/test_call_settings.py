"""`calls.arguments: as_sent` of an environment, obeyed by `call`, by `doctor` and by `check-env`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mcp_rollout.rollout.contract.calls import Call, Turn
from mcp_rollout.rollout.contract.play import Play
from mcp_rollout.rollout.doctor.examination import Options
from mcp_rollout.rollout.doctor.examine import examine
from mcp_rollout.rollout.doctor.plan import CallOption
from mcp_rollout.rollout.environment.config import Environment, load_environment
from mcp_rollout.rollout.environment.harness import ListedTask
from mcp_rollout.rollout.environment.startup import opened_environment

pytestmark = pytest.mark.anyio
COMMAND = Path(sys.executable).with_name("mcp-rollout")
MINI = Path(__file__).parents[2] / "gateway" / "mini_server.py"
REFUSED_BY_THE_SCHEMA: dict[str, Any] = {"text": [5], "more": None}


def written(directory: Path, arguments: str) -> Path:
    entry = {"command": sys.executable, "args": ["-I", "-S", str(MINI), "echo"]}
    file = directory / f"{arguments}.yaml"
    file.write_text(json.dumps({"servers": {"world": entry}, "calls": {"arguments": arguments}}))
    return file


def environment(directory: Path, arguments: str) -> Environment:
    return load_environment(written(directory, arguments), directory)


@pytest.mark.parametrize(("arguments", "status"), [("as_sent", 0), ("checked", 1)])
def test_call(tmp_path: Path, arguments: str, status: int) -> None:
    command = [COMMAND, "call", written(tmp_path, arguments), "echo", json.dumps(REFUSED_BY_THE_SCHEMA)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, "[5]" == done.stdout.strip()) == (status, status == 0), done


@pytest.mark.parametrize(("arguments", "refused"), [("as_sent", False), ("checked", True)])
async def test_the_doctor_sends_what_the_user_asks_for(tmp_path: Path, arguments: str, refused: bool) -> None:
    option = CallOption(server="world", tool="echo", arguments=REFUSED_BY_THE_SCHEMA)
    (report,) = await examine(environment(tmp_path, arguments), Options(call_options=(option,)))
    assert any(note.startswith("not called, echo: text") for note in report.notes) is refused, report.notes


@pytest.mark.parametrize(("arguments", "misfits"), [("as_sent", 0), ("checked", 1)])
async def test_a_script_of_the_contract(tmp_path: Path, arguments: str, misfits: int) -> None:
    made = environment(tmp_path, arguments)
    script = [Turn(calls=[Call(name="echo", arguments=REFUSED_BY_THE_SCHEMA)])]
    async with opened_environment(made) as gateway:
        async with gateway.lease(trajectory="t", task=None, seed=0) as session:
            play = Play(made, session, ListedTask(task="t", seed=0), script)
            await play.finish()
    assert len(play.misfits) == misfits
