"""A run with a single controller that cannot go on ends with the reason, and none of its processes is left."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml
from areal_run import needs_areal, train_areal

from rollout.verl_cpu.tiny_model import make_tiny_model

pytestmark = [pytest.mark.verl, pytest.mark.full, pytest.mark.timeout(1200), needs_areal]

ROOT = Path(__file__).parents[3]
COMMAND = Path(sys.executable).with_name("mcp-rollout")
AGENT = """
class Raises:
    async def play(self, turns):
        if (await turns.generate()).content:  # the preflight's policy says nothing
            raise RuntimeError("a defect of this agent")
"""


@pytest.fixture
def overrides(tmp_path: Path) -> dict[str, object]:
    """A run of `calculator` with an agent that always fails, and the divergence from a reference policy."""
    directory = tmp_path / "environments"
    directory.mkdir()
    (tmp_path / "failing_agent.py").write_text(AGENT)
    raw = yaml.safe_load((ROOT / "configs" / "environments" / "calculator.yaml").read_text())
    (directory / "sums.yaml").write_text(yaml.safe_dump(raw | {"agent": "failing_agent:Raises"}))
    rows = ["--environments-dir", directory, "--split", "train", "-n", "8", "-o", tmp_path / "rows.parquet"]
    subprocess.run([COMMAND, "data", "sums", *rows], check=True)
    return {
        "actor.path": make_tiny_model(tmp_path / "model", hidden=32, layers=1),
        "train_dataset.path": tmp_path / "rows.parquet",
        "train_dataset.batch_size": 2,
        "mcp.environments_dir": directory,
        "gconfig.n_samples": 2,
        "gconfig.max_new_tokens": 16,
        "actor.kl_ctl": 0.05,
    }


def left(home: Path) -> list[list[str]]:
    """Command lines of the run's processes."""
    lines = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if any(str(home) in part for part in line)]


def test_a_run_that_only_withdraws_ends_with_the_reasons(overrides: dict[str, object], tmp_path: Path) -> None:
    done = train_areal(tmp_path, overrides, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1, done.stdout[-8000:]
    assert "a defect of this agent" in done.stdout.rpartition("error: ")[2]
    assert left(tmp_path) == []


def test_a_run_that_cannot_start_leaves_no_worker(overrides: dict[str, object], tmp_path: Path) -> None:
    """The actor's worker runs already when the model turns out to have no weights."""
    model = shutil.copytree(tmp_path / "model", tmp_path / "empty")
    for weights in model.glob("*.safetensors"):
        weights.unlink()
    done = train_areal(tmp_path, overrides | {"actor.path": model}, PYTHONPATH=str(tmp_path))
    assert done.returncode != 0 and "safetensors" in done.stdout, done.stdout[-8000:]
    assert left(tmp_path) == []
