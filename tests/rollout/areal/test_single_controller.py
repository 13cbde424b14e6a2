"""A run with a single controller that cannot start or go on ends with the reason, and leaves none of its processes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml
from areal_run import needs_areal, train_areal

from mcp_rollout.rollout.verl_cpu.tiny_model import make_tiny_model

pytestmark = [pytest.mark.verl, pytest.mark.full, pytest.mark.timeout(1200), needs_areal]

ROOT = Path(__file__).parents[3]
COMMAND = Path(sys.executable).with_name("mcp-rollout")
AGENT = """
class Raises:
    async def play(self, turns):
        if turns.limits.assistant_turns > 1:  # the preflight's only trajectory has one turn
            raise RuntimeError("a defect of this agent")
        await turns.generate()
"""


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


def test_a_run_that_only_withdraws_ends_with_the_reasons(overrides: dict[str, object], tmp_path: Path) -> None:
    """AReaL's batch loop would ask for other trajectories for ever."""
    directory = tmp_path / "environments"
    directory.mkdir()
    (tmp_path / "failing_agent.py").write_text(AGENT)
    raw = yaml.safe_load((ROOT / "configs" / "environments" / "calculator.yaml").read_text())
    (directory / "calculator.yaml").write_text(yaml.safe_dump(raw | {"agent": "failing_agent:Raises"}))
    model = make_tiny_model(tmp_path / "model", hidden=32, layers=1)
    given = {"actor.path": model, "mcp.environments_dir": directory}
    done = train_areal(tmp_path, overrides | given, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1, done.stdout[-8000:]
    reasons = re.search(r"error: 4 of 4 .* max_failed_share=0.5 .*\n  4 x agent_error: (.*)", done.stdout)
    assert reasons and "a defect of this agent" in reasons[1], done.stdout[-8000:]
    assert left(tmp_path) == []


def test_a_run_that_cannot_start_leaves_no_worker(overrides: dict[str, object], tmp_path: Path) -> None:
    """The actor's worker runs already when the model turns out to have no weights."""
    model = make_tiny_model(tmp_path / "model", hidden=32, layers=1)
    for weights in model.glob("*.safetensors"):
        weights.unlink()
    done = train_areal(tmp_path, overrides | {"actor.path": model})
    assert done.returncode != 0 and "safetensors" in done.stdout, done.stdout[-8000:]
    assert left(tmp_path) == []
