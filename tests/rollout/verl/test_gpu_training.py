"""GRPO with an FSDP actor on a GPU, our engine there or on the CPU beside it: every token held against its log."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rollout.verl_cpu.tiny_model import make_tiny_model

pytestmark = [pytest.mark.verl, pytest.mark.gpu, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("generates_on", "dtype", "apart"),
    [("cuda", "float32", 4e-5), ("cpu", "float32", 4e-5), ("cuda", "bfloat16", 1e-2)],
)
def test_the_trainer_gets_what_the_engine_logged(generates_on: str, dtype: str, apart: float, tmp_path: Path) -> None:
    """Ids, masks and log-probabilities at every position, and the trainer's own log-probabilities close to them.

    In float32 closer than an update moves them: 2e-4 on average, in one of the two steps.
    """
    source = make_tiny_model(tmp_path / "tiny")
    command = [sys.executable, "-m", "benchmarks.token_audit", source, "--out", tmp_path / "audit", "--rows", "4"]
    command += ["--by", "trainer", "--only", "chain", "--gpu", generates_on, "--dtype", dtype]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    (found,) = json.loads((tmp_path / "audit" / "results.json").read_text())
    assert found["positions"] > 5000 and len(found["step_s"]) == 2
    assert found["mean_apart"] < apart
