"""`check-env --program`: one trajectory of a program with a scripted policy, and what it changes."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import yaml
from typer.testing import CliRunner

from mcp_rollout.rollout.cli.app import app

ROOT = Path(__file__).parents[3]
ODD = ROOT / "tests" / "support" / "odd_program.py"


def test_a_program_is_tried_out_with_the_experts_turns(tmp_path: Path) -> None:
    raw = yaml.safe_load((ROOT / "configs" / "environments" / "calculator.yaml").read_text())
    command = [sys.executable, str(ODD), "plain", "${model.url}", "${mcp.url}"]
    agent = {"use": "mcp_rollout.rollout.programs.program:Program", "with": {"command": command}}
    (tmp_path / "sums.yaml").write_text(yaml.safe_dump(raw | {"agent": agent}))
    done = CliRunner().invoke(app, ["check-env", str(tmp_path / "sums.yaml"), "--program", "--json"])
    assert done.exit_code == 0, done.output
    seen = {each["about"]: each["text"] for each in json.loads(done.stdout)["seen"]}
    assert seen["program"] == f"{sys.executable}: Python {sys.version.split()[0]}"
    assert seen["outcome"].startswith("answered") and seen["score"] == "1"
    assert seen["date"].startswith(f"the prompt has {time.strftime('%Y-%m-%d')}, ")
    assert set(seen["tools"].split(", ")) == {"add", "subtract", "multiply", "divide", "evaluate"}
