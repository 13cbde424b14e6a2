"""Runs of verl that start again where they were cut: what all starts of a run have logged."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lab.demo.processes import VARIABLES_KEY


def logged(directory: Path) -> dict[int, dict[str, Any]]:
    """verl's metrics by step. Of a step that was taken again after an interruption, the last ones count."""
    found: dict[int, dict[str, Any]] = {}
    for path in sorted(directory.glob("metrics-*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            with suppress(json.JSONDecodeError):  # an interruption leaves part of a line
                each = json.loads(line)
                found.setdefault(each["step"], {}).update(each["data"])
    return found


def was_evaluated(metrics: Mapping[str, Any]) -> bool:
    return any(name.startswith("val-") for name in metrics)


def overrides(directory: Path, *, every: int) -> dict[str, object]:
    """verl's overrides of the next start of the run in a directory.

    Args:
        directory: absolute.
        every: steps between two evaluations, at which checkpoints are written as well.
    """
    starts = len(list(directory.glob("metrics-*.jsonl")))
    return {
        # Also where the first start was interrupted before: what the run lifted is counted from there.
        "trainer.val_before_train": not was_evaluated(logged(directory).get(0, {})),
        "trainer.test_freq": every,
        "trainer.save_freq": every,
        "trainer.max_actor_ckpt_to_keep": 1,
        "trainer.resume_mode": "auto",
        "trainer.default_local_dir": directory,
        "trainer.total_epochs": 1000,
        # Runs side by side take fewer.
        f"{VARIABLES_KEY}.OMP_NUM_THREADS": f"'{os.environ.get('OMP_NUM_THREADS', 2)}'",
        f"+{VARIABLES_KEY}.VERL_FILE_LOGGER_PATH": directory / f"metrics-{starts:03d}.jsonl",
        "hydra.run.dir": directory / "hydra",
    }
