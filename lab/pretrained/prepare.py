"""What runs begin with, each made once: a world's rows and lock, an expert's conversations, the warmed-up models."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from lab.demo.processes import child, command
from lab.pretrained.desk import Desk
from lab.pretrained.settings import HELD_OUT_TEMPERATURE, TURN_TOKENS, Setting, WarmedUpOn
from lab.pretrained.table import Table

ROOT = Path(__file__).resolve().parents[2]


class World(Protocol):
    """Where the model is trained; what it writes is below its home.

    Its environments are `name`, whose test split is measured, and `name` with `_validation`, for choosing.
    """

    @property
    def name(self) -> str: ...

    @property
    def environments(self) -> Path:
        """The directory of their files."""
        ...

    def prepare(self, held_out: int) -> None:
        """Write `train.parquet`, a Parquet file of the test split of each environment, and `tool_config.yaml`."""
        ...

    def played(self, environment: str, held_out: int) -> Sequence[object]:
        """Arguments of `mcp-rollout run` for the test split of an environment."""
        ...

    def expert(self, kind: WarmedUpOn) -> Path:
        """Conversations of an expert, as `mcp-rollout trace export --sft` writes them."""
        ...


WORLDS: Mapping[str, Callable[[Path], World]] = MappingProxyType({"desk": Desk, "table": Table})
"""By name, each made from the directory of its runs."""


def evaluated(world: World, home: Path, model: Path, environment: str, seed: int, held_out: int) -> Path:
    """The directory of a model's trajectories in an environment's test split; what is missing there is played."""
    out = home / f"raw-{environment}-seed{seed}"
    sampling = ("--temperature", str(HELD_OUT_TEMPERATURE), "--max-tokens", str(TURN_TOKENS), "--seed", str(seed))
    played = map(str, world.played(environment, held_out))
    command("run", *played, "--engine", model, *sampling, "--concurrency", "32", "--out", out, "--resume")
    return out


def warmed_up(world: World, home: Path, model: Path, setting: Setting, seed: int) -> Path:
    """The model's directory after the warm-up of a setting with a seed. Raises CalledProcessError."""
    made = home / f"model-{setting.warm_up}-{setting.warm_up_steps}-seed{seed}"
    if made.is_dir():
        return made
    rows = world.expert(setting.warm_up)
    program = [sys.executable, "-m", "lab.pretrained.warm_up", model, rows, made, "--seed", str(seed)]
    program += ["--steps", str(setting.warm_up_steps), "--rate", str(setting.warm_up_rate)]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with child(program, env=os.environ | {"PYTHONPATH": path}) as process:
        process.wait()
    subprocess.CompletedProcess(process.args, process.returncode).check_returncode()
    return made
