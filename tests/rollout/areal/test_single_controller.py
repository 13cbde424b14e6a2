"""A run with a single controller that cannot start leaves none of its processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from areal_run import needs_areal, train_areal

from rollout.verl_cpu.tiny_model import make_tiny_model

pytestmark = [pytest.mark.verl, pytest.mark.full, pytest.mark.timeout(1200), needs_areal]

COMMAND = Path(sys.executable).with_name("mcp-rollout")


@pytest.fixture
def overrides(tmp_path: Path) -> dict[str, object]:
    """A run of `calculator` with the divergence from a reference policy."""
    subprocess.run(
        [COMMAND, "data", "calculator", "--split", "train", "-n", "8", "-o", tmp_path / "rows.parquet"], check=True
    )
    return {
        "train_dataset.path": tmp_path / "rows.parquet",
        "train_dataset.batch_size": 2,
        "gconfig.n_samples": 2,
        "gconfig.max_new_tokens": 16,
        "actor.kl_ctl": 0.05,
    }


def left(home: Path) -> list[list[str]]:
    """Command lines of the run's processes."""
    lines = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if any(str(home) in part for part in line)]


def test_a_run_that_cannot_start_leaves_no_worker(overrides: dict[str, object], tmp_path: Path) -> None:
    """The actor's worker runs already when the model turns out to have no weights."""
    model = make_tiny_model(tmp_path / "model", hidden=32, layers=1)
    for weights in model.glob("*.safetensors"):
        weights.unlink()
    done = train_areal(tmp_path, overrides | {"actor.path": model})
    assert done.returncode != 0 and "safetensors" in done.stdout, done.stdout[-8000:]
    assert left(tmp_path) == []
