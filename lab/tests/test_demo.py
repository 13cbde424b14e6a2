"""The demo: what its tasks pay, what openai-agents tells its model, and that a policy gets better."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import mcp_rollout

from lab.demo.openai_agents import write_environments

ROOT = Path(__file__).parents[2]
COMMAND = str(Path(sys.executable).with_name("mcp-rollout"))


def run(*command: str, timeout_s: float = 120) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def called(*arguments: str) -> Any:
    done = mcp_rollout(*arguments, "--json")
    assert done.status == 0, done.out + done.err
    return done.json


def test_the_slice_that_the_demo_trains_on_pays_neither_chance_nor_silence(tmp_path: Path) -> None:
    for engine in ("random", "none"):
        tasks = ("lab/worlds/shop.yaml:slice=wish_fitting", "-n", "30")
        played = called("run", *tasks, "--engine", engine, "--out", str(tmp_path / engine))
        assert played["failed"] == 0 and played["reward_mean"] <= 0.2


@pytest.mark.full
@pytest.mark.needs("mcp2")
def test_openai_agents_tells_the_demos_model_what_the_built_in_agent_does(tmp_path: Path) -> None:
    told: list[list[Any]] = []
    for name, directory in (("built_in", "lab/worlds"), ("program", str(write_environments(tmp_path / "e")))):
        out, rows = str(tmp_path / name), tmp_path / f"{name}.jsonl"
        there = ("--environments-dir", directory)
        run(COMMAND, "run", "shop:slice=any", *there, "--engine", "expert", "-n", "9", "--out", out)
        run(COMMAND, "trace", "export", out, "--sft", "-o", str(rows))
        found = sorted(map(json.loads, rows.read_text().splitlines()), key=lambda row: row["task"])
        told.append([(row["task"], row["messages"], row["tools"]) for row in found])
    assert len(told[0]) == 9 and told[0] == told[1]


@pytest.mark.full
@pytest.mark.verl
@pytest.mark.timeout(1800)
def test_the_demo_shows_a_policy_that_gets_better(tmp_path: Path) -> None:
    output = run(sys.executable, "-m", "lab.demo", "--out", str(tmp_path), timeout_s=1700)
    assert "turn 15" in output and "45/45 steps" in output
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["last"] - result["first"] >= 0.2
    before, after = result["held_out"]
    assert after - before >= 0.4
    counts = result["after"]["by_kind"].values()
    assert len(counts) == 6 and sum(of for _, of in counts) == 198
    assert min(served / of for served, of in counts) >= 0.6
    assert result["after"]["token_limit"] <= 0.05 and result["after"]["looping"] <= 0.05
    assert (tmp_path / "curve.png").stat().st_size > 10_000


@pytest.mark.full
@pytest.mark.verl
@pytest.mark.timeout(1800)
def test_without_a_learning_rate_nothing_is_learnt(tmp_path: Path) -> None:
    run(sys.executable, "-m", "lab.demo", "--control", "--out", str(tmp_path), timeout_s=1700)
    result = json.loads((tmp_path / "result.json").read_text())
    assert abs(result["last"] - result["first"]) < 0.15
