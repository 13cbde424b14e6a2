"""A GRPO run through verl's own entry point, followed through the output of its `file` logger."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lab.demo.display import bar, console
from lab.demo.processes import verl_training
from lab.worlds import WORLDS
from mcp_rollout.rollout.cli.live import line_of
from mcp_rollout.rollout.trace.heartbeat import watched

TIMEOUT_S = 3600.0
LINE_EVERY_S = 30.0
TEMPERATURE = 0.7
"""Of all sampling. Equally likely steps stay so; unlikely tokens, which break calls and days, become rarer."""


def train(
    home: Path, *, seed: int, steps: int, learning_rate: float, more: Mapping[str, object] = MappingProxyType({})
) -> None:
    """Train the model in `home` on the rows and the lock there; verl's output goes to `home/train.log`.

    Validates on held-out rows before the first step and after the last, with the same sampling as in training.

    Args:
        more: Further overrides of verl's configuration.

    Raises:
        SystemExit: verl ended with an error; the end of its output has been shown.
    """
    overrides = {
        "engine": "cpu",
        "recipe": "warm_start",
        "data.train_files": home / "train.parquet",
        "data.val_files": home / "test.parquet",
        "data.seed": seed,
        "actor_rollout_ref.rollout.custom.mcp.seed": seed,
        "actor_rollout_ref.rollout.custom.mcp.environments_dir": WORLDS,
        # Kinds of tasks alternate from row to row; unshuffled, every batch has each of them equally often.
        "data.shuffle": False,
        "data.train_batch_size": 9,
        "data.max_prompt_length": 400,
        "data.max_response_length": 288,
        "actor_rollout_ref.model.path": home / "model",
        "actor_rollout_ref.actor.optim.lr": learning_rate,
        # Falls to 0: at a constant rate Adam keeps moving a policy that has converged, and degrades its format.
        "actor_rollout_ref.actor.optim.lr_scheduler_type": "cosine",
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 12,
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 12,
        "actor_rollout_ref.rollout.n": 8,
        "actor_rollout_ref.rollout.max_num_seqs": 72,
        "++actor_rollout_ref.rollout.custom.mcp.environment.limits.tokens_per_turn": 64,
        "actor_rollout_ref.rollout.custom.mcp.record_trained": True,
        "actor_rollout_ref.rollout.multi_turn.tool_config_path": home / "tool_config.yaml",
        "actor_rollout_ref.rollout.val_kwargs.do_sample": True,
        "actor_rollout_ref.rollout.temperature": TEMPERATURE,
        "actor_rollout_ref.rollout.val_kwargs.temperature": TEMPERATURE,
        "trainer.val_before_train": True,
        "trainer.test_freq": steps,
        "trainer.default_local_dir": home / "train",
        "trainer.total_epochs": 1000,
        "trainer.total_training_steps": steps,
        # Only one process computes at a time.
        "ray_kwargs.ray_init.runtime_env.env_vars.OMP_NUM_THREADS": "'2'",
        "ray_kwargs.ray_init.runtime_env.env_vars.VERL_FILE_LOGGER_ROOT": home.absolute() / "train",
        "hydra.run.dir": home / "hydra",
    }
    arguments = [f"{key}={value}" for key, value in {**overrides, **more}.items()]
    log = home / "train.log"
    with verl_training(arguments, log) as process:
        _follow(process, home, steps)
    if process.returncode:
        console.print(log.read_text(errors="replace")[-3000:], markup=False)
        raise SystemExit(f"error: verl ended with status {process.returncode}; its whole output is in {log}")


def logged_steps(home: Path) -> list[dict[str, Any]]:
    """Return verl's metrics of the training steps logged so far."""
    logged = home / "train" / "mcp_rollout" / "mcp_grpo.jsonl"
    if not logged.is_file():
        return []
    lines = [json.loads(line) for line in logged.read_text().splitlines() if line.endswith("}")]
    return [line["data"] for line in lines if "critic/score/mean" in line["data"]]


def _follow(process: subprocess.Popen[bytes], home: Path, steps: int) -> None:
    """Show steps and rewards as verl logs them, and what the trajectories are doing, until the process ends or
    `TIMEOUT_S` has passed. Without a terminal a line is printed every `LINE_EVERY_S`."""
    traces, started = home / "train" / "traces", time.monotonic()
    next_line = started + LINE_EVERY_S
    with bar("Ray, verl and the model start (about a minute)", steps) as (progress, task):
        while process.poll() is None and time.monotonic() < started + TIMEOUT_S:
            activity = watched(traces)[0]
            if done := logged_steps(home):
                rates = f"{activity.rates.turns:.0f} turns and {activity.rates.tokens:.0f} tokens a second"
                text = f"GRPO, reward {done[-1]['critic/score/mean']:.2f}, {activity.in_flight} in flight, {rates}"
                progress.update(task, completed=len(done), description=text)
            if not console.is_terminal and time.monotonic() >= next_line:
                console.print(line_of(activity), markup=False)
                next_line += LINE_EVERY_S
            time.sleep(0.5)
        progress.update(task, completed=len(logged_steps(home)))
