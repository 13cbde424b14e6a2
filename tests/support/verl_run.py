"""verl's own entry point on this CPU, as a user starts it, with everything that it writes in one directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_VARIABLES = "ray_kwargs.ray_init.runtime_env.env_vars"
CPU_MODULES = "mcp_rollout.rollout.verl_cpu.accelerator,mcp_rollout.rollout.verl.trainer"
"""What configs/engine/cpu.yaml has verl's processes import first."""


def train(
    home: Path,
    overrides: Mapping[str, object],
    *,
    python: str | Path = sys.executable,
    timeout_s: float = 800,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """The finished run, whatever its status; its output and errors are one text."""
    argv, env = command(home, overrides, python=python, **environment)
    return subprocess.run(
        argv,
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def command(
    home: Path, overrides: Mapping[str, object], *, python: str | Path = sys.executable, **environment: str
) -> tuple[list[str], dict[str, str]]:
    """A run's command line, to be started in `ROOT`, and its environment.

    Ray's workers import this checkout even if the environment has another one installed.
    """
    path = os.pathsep.join(filter(None, [environment.get("PYTHONPATH"), str(ROOT), os.environ.get("PYTHONPATH")]))
    if "VERL_USE_EXTERNAL_MODULES" in environment:  # the configuration has its own
        modules = f"{CPU_MODULES},{environment['VERL_USE_EXTERNAL_MODULES']}"
        overrides = {f"{_VARIABLES}.VERL_USE_EXTERNAL_MODULES": f"'{modules}'", **overrides}
    all_overrides = {
        "engine": "cpu",
        "trainer.default_local_dir": home,
        "hydra.run.dir": home / "hydra",
        # Most policies here are untrained, and teach themselves nothing.
        "actor_rollout_ref.rollout.custom.mcp.void_batches": 0,
        f"{_VARIABLES}.VERL_FILE_LOGGER_ROOT": home,
        **overrides,
    }
    argv = [str(python), "-m", "verl.trainer.main_ppo", "--config-dir", "configs", "--config-name", "mcp_grpo"]
    # Ray would write a token file into the home directory.
    own = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    return (
        [*argv, *(f"{key}={value}" for key, value in all_overrides.items())],
        {**os.environ, **own, **environment, "PYTHONPATH": path},
    )


def gpu_engine(generates_on: str, dtype: str) -> dict[str, object]:
    """verl's overrides for an actor on a GPU, and an engine there or beside it on the CPU, that compute in `dtype`."""
    short = {"float32": "fp32", "bfloat16": "bf16"}
    return {
        "engine": "transformers",
        "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype": short[dtype],
        "actor_rollout_ref.rollout.dtype": dtype,
        "actor_rollout_ref.rollout.engine_kwargs.transformers_cpu.device": generates_on,
    }


def logged(home: Path) -> dict[int, dict[str, Any]]:
    """What verl's `file` logger wrote, by step."""
    lines = (home / "mcp_rollout" / "mcp_grpo.jsonl").read_text().splitlines()
    return {record["step"]: record["data"] for record in map(json.loads, lines)}


def reported() -> Any:
    """The statistics that workers have sent since this was last asked."""
    import ray

    from mcp_rollout.rollout.verl.batch_statistics import statistics_collector

    collector = statistics_collector()
    groups = {one.group for one in ray.get(collector.of.remote()).trajectories}
    return ray.get(collector.take.remote(groups))
