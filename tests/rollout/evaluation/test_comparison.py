"""Comparing two runs: intervals that cover, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import pytest
from commands import mcp_rollout

from mcp_rollout.rollout.evaluation.comparison import paired

ROOT = Path(__file__).parents[3]
GUESS = "examples/guess/guess.yaml"


def call(*arguments: str | Path, status: int = 0) -> str:
    done = mcp_rollout(*arguments)
    assert done.status == status, done.out + done.err
    return done.err if status else done.out


def flips(random: Random) -> float:
    """A success that half of the rows gain, and few lose."""
    return random.choice([0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, -1.0, 0.0])


DRAWS: dict[str, tuple[Callable[[Random], float], float]] = {
    "normal": (lambda random: random.gauss(0.1, 0.3), 0.1),
    "successes": (flips, 0.4),
    "nearly all gained": (lambda random: float(random.random() < 0.8), 0.8),
}


@pytest.mark.parametrize("population", DRAWS)
@pytest.mark.parametrize("rows", [5, 12, 40, 1000])
def test_intervals_cover_the_true_difference_as_often_as_they_promise(rows: int, population: str) -> None:
    """`lab/benchmarks/comparison_coverage.py` has more populations, and more draws."""
    draw, truth = DRAWS[population]
    covered, tried = 0, 30
    for seed in range(tried):
        random = Random(seed)
        differences = [draw(random) for _ in range(rows)]
        found = paired([0.0] * rows, differences)
        covered += found.low is not None and found.high is not None and found.low <= truth <= found.high
    assert covered >= 25  # 95% of 30: one seed in 1,000 would be further off


@pytest.mark.parametrize("samples", [2, 3, 5, 7])
def test_means_that_differ_by_rounding_are_equal(samples: int) -> None:
    for hundredths in range(102):
        reward = hundredths / 100
        found = paired([reward] * 40, [fmean([reward] * samples)] * 40)
        assert (found.difference, found.low) == (0.0, None)


def test_two_runs_are_compared_over_the_rows_of_both(tmp_path: Path) -> None:
    call("run", GUESS, "--engine", "none", "-n", "4", "--out", tmp_path / "a")
    call("run", GUESS, "--engine", "expert", "-n", "3", "--samples", "2", "--out", tmp_path / "b")
    report: Any = json.loads(call("compare", tmp_path / "a", tmp_path / "b", "--json"))
    found = report["environments"]["guess"]
    assert (found["rows"], found["only_a"], found["only_b"]) == (3, 1, 0)
    assert (found["trajectories_a"], found["trajectories_b"]) == (3, 6)
    assert found["success"]["difference"] == 1.0
    assert len(found["gained"]) == 3 and found["lost"] == []
    assert found["costs"]["tool_calls"]["a"] == 0 < found["costs"]["tool_calls"]["b"]
    table = call("compare", tmp_path / "b", tmp_path / "a")
    assert "3 rows in both, 0 only in A, 1 only in B" in table and "3 rows succeed in A, not in B" in table
    message = call("compare", tmp_path / "a", tmp_path / "b", "--where-b", "reward < 0", status=2)
    assert "has no rows with a reward" in message and str(tmp_path / "a") in message


def test_runs_with_another_reward_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "guess.yaml"
    text = (ROOT / GUESS).read_text()
    other.write_text(
        text.replace("{server: guess, parts: [found]}", "{server: guess, parts: [found], weights: {score: 0.5}}")
    )
    call("run", GUESS, "--engine", "none", "-n", "2", "--out", tmp_path / "a")
    call("run", str(other), "--engine", "none", "-n", "2", "--out", tmp_path / "b")
    message = call("compare", tmp_path / "a", tmp_path / "b", status=2)
    assert "guess had another reward" in message and "--anyway" in message
    assert "note: guess had another reward" in call("compare", tmp_path / "a", tmp_path / "b", "--anyway")


def test_tokens_are_not_compared_with_bytes(tmp_path: Path) -> None:
    call("run", GUESS, "--engine", "expert", "-n", "2", "--out", tmp_path / "text")
    shutil.copytree(tmp_path / "text", tmp_path / "ids")
    (record,) = (tmp_path / "ids").rglob("*.run.json")
    record.write_text(record.read_text().replace('"bytes"', '"model"'))
    text = call("compare", tmp_path / "text", tmp_path / "ids")
    assert "one run counts tokens" in text and "│ tool calls" in text and "│ sampled tokens" not in text
    same: Any = json.loads(call("compare", tmp_path / "text", tmp_path / "text", "--json"))
    assert "sampled_tokens" in same["environments"]["guess"]["costs"] and same["notes"] == []
