"""What runs begin with, each made once: rows, the lock, an expert's conversations, and the warmed-up models."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from demo_experiment.processes import child, command
from pretrained_experiment.settings import EXPERT_ROWS, HELD_OUT_TEMPERATURE, TURN_TOKENS, Setting

EXAMPLES = Path(__file__).resolve().parents[1]
DESK = EXAMPLES / "desk"
"""The environments."""


def prepare_rows(home: Path, held_out: int) -> None:
    """Write the rows of training, and of the two test splits as many as given, and the lock of the tools."""
    if (home / "tool_config.yaml").is_file():
        return
    desk, validation = DESK / "desk.yaml", DESK / "desk_validation.yaml"
    command("data", desk, "--split", "train", "-o", home / "train.parquet")
    command("data", desk, "--split", "test", "-n", str(held_out), "-o", home / "desk.parquet")
    command("data", validation, "--split", "test", "-n", str(held_out), "-o", home / "desk_validation.parquet")
    command("tool-config", desk, validation, "-o", home / "tool_config.yaml")


def evaluated(home: Path, model: Path, environment: str, seed: int, held_out: int) -> Path:
    """The directory of a model's trajectories in an environment's test split; what is missing there is played."""
    out = home / f"raw-{environment}-seed{seed}"
    sampling = ("--temperature", str(HELD_OUT_TEMPERATURE), "--max-tokens", str(TURN_TOKENS), "--seed", str(seed))
    more = ("--split", "test", "-n", str(held_out), "--concurrency", "32", "--out", out)
    command("run", DESK / f"{environment}.yaml", "--engine", model, *sampling, *more, "--resume")
    return out


def warmed_up(home: Path, model: Path, setting: Setting, seed: int) -> Path:
    """The model's directory after the warm-up of a setting with a seed. Raises CalledProcessError."""
    made = home / f"model-{setting.warm_up}-seed{seed}"
    if made.is_dir():
        return made
    expert, rows = home / f"expert-{setting.warm_up}", home / f"expert-{setting.warm_up}.jsonl"
    if not rows.is_file():
        environment = DESK / f"desk_{setting.warm_up}.yaml"
        more = ("--split", "train", "-n", str(EXPERT_ROWS), "--out", expert, "--resume")
        command("run", environment, "--engine", "expert", *more)
        command("trace", "export", expert, "--sft", "-o", rows)
    program = [sys.executable, "-m", "pretrained_experiment.warm_up", model, rows, made, "--seed", str(seed)]
    program += ["--steps", str(setting.warm_up_steps), "--rate", str(setting.warm_up_rate)]
    path = os.pathsep.join(filter(None, [str(EXAMPLES), os.environ.get("PYTHONPATH")]))
    with child(program, env=os.environ | {"PYTHONPATH": path}) as process:
        process.wait()
    subprocess.CompletedProcess(process.args, process.returncode).check_returncode()
    return made
