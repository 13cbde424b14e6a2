"""Whole asynchronous trainings on the echo server, with an engine that keeps each version of its weights."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from echo_training import JUDGED, SHOUT_PLUM, prepare_training
from verl_run import ROOT, train

SEPARATE: dict[str, Any] = {
    "trainer.v1.trainer_mode": "mcp_separate_async",
    "actor_rollout_ref.rollout.nnodes": 1,
    "actor_rollout_ref.rollout.n_gpus_per_node": 1,
    "actor_rollout_ref.rollout.checkpoint_engine.backend": "gloo",
    "actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module": "mcp_rollout.rollout.verl_cpu.gloo_weights",
    "ray_kwargs.ray_init.num_gpus": 2,
    "ray_kwargs.ray_init.num_cpus": 14,
}
"""An engine beside the trainer's, on a device that is as fake."""
_PLUGINS = ROOT / "tests" / "support"


def prepare(
    home: Path, *, rows: int, samples: int, environment: Mapping[str, Any] = JUDGED, conversation: Any = SHOUT_PLUM
) -> dict[str, Any]:
    """Overrides of an asynchronous run whose training file is one batch, so that a step issues a row more than once."""
    overrides = prepare_training(home, dict(environment), conversation, samples=samples)
    (first, *_) = pq.read_table(home / "rows.parquet").to_pylist()
    table = [{**first, "extra_info": {**first["extra_info"], "index": index}} for index in range(rows)]
    pq.write_table(pa.Table.from_pylist(table), home / "rows.parquet")
    return overrides | {
        "recipe": "async",
        "data.seed": 3,
        "data.train_batch_size": rows,
        "actor_rollout_ref.actor.optim.lr": 1e-3,  # one step must show in the next one's probabilities
        "actor_rollout_ref.rollout.engine_kwargs.transformers_cpu.engine_log": home / "engine.jsonl",
        "actor_rollout_ref.rollout.custom.mcp.record_trained": True,
    }


def run(
    home: Path,
    overrides: Mapping[str, Any],
    *,
    step_s: float = 0.0,
    python: str | Path = sys.executable,
    **environment: str,
) -> str:
    """Train, and return what was printed.

    Args:
        step_s: What each step of the decoder takes beside its computing; SGLang's takes as long as it does.
    """
    path = ":".join(filter(None, [str(_PLUGINS), environment.pop("PYTHONPATH", "")]))
    variables = {"VERL_USE_EXTERNAL_MODULES": "watched_engine", "PYTHONPATH": path, "DECODE_STEP_S": str(step_s)}
    # A Ray of its own, or it would connect to that of another test process; socket paths are limited to 107 bytes.
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as ray:
        done = train(home, overrides, python=python, timeout_s=1700, RAY_TMPDIR=ray, **variables, **environment)
    assert done.returncode == 0, done.stdout[-8000:]
    return done.stdout
