"""Every example runs, and asserts what it claims; the commands that the README quotes are among them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from commands import mcp_rollout

ROOT = Path(__file__).parents[1]


def run(*command: str, timeout_s: float = 120) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def called(*arguments: str) -> Any:
    done = mcp_rollout(*arguments, "--json")
    assert done.status == 0, done.out + done.err
    return done.json


def test_scope_process_keeps_two_trajectories_apart() -> None:
    output = run(sys.executable, "examples/isolation.py")
    assert "scope process: the second trajectory sees 'two'" in output


def test_an_environment_of_one_file_can_be_rolled_out(tmp_path: Path) -> None:
    environment = "examples/guess/guess.yaml"
    expert = called("run", environment, "--engine", "expert", "-n", "10", "--out", str(tmp_path / "expert"))
    nothing = called("run", environment, "--engine", "none", "-n", "10", "--out", str(tmp_path / "none"))
    assert (expert["reward_mean"], nothing["reward_mean"]) == (1.0, 0.0)
    rows = called("data", environment, "-n", "10", "-o", str(tmp_path / "rows.parquet"))
    assert rows["rows"] == 10
