"""Validate the inference engine of a configuration: whether it and its GPUs are there, and what it computes in."""

from __future__ import annotations

import math
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import structlog
from omegaconf import DictConfig, OmegaConf
from safetensors import safe_open

from gateway.errors import ConfigError
from rollout.environment.config import INCLUDED_CONFIGS
from rollout.verl.settings import SEPARATE_MODE
from rollout.verl_cpu import ROLLOUT_NAME

log = structlog.get_logger(__name__)

LOCKED = ("sglang", "vllm")
"""Engines with a lock in constraints/, which are also the names of their modules."""
_LOCKS = INCLUDED_CONFIGS.with_name("constraints")
"""A link to constraints/, whose locks a wheel has too."""
_NAME_KEY = "actor_rollout_ref.rollout.name"
_CPU_DTYPES = ("float32", "bfloat16", "float16")


def check_installed(config: DictConfig) -> None:
    """Validate that the engine is installed where it will be started.

    Raises:
        ConfigError: it is not; the remedy is the command that installs it.
    """
    name = str(config.actor_rollout_ref.rollout.name)
    if name not in LOCKED or _joins_a_cluster(config) or find_spec(name) is not None:
        return
    remedy = f"{sys.executable} -m pip install --no-deps --require-hashes -r {_LOCKS / f'{name}_gpu.txt'}"
    if os.environ.get("VERL_PLATFORM") != "cpu":
        remedy += "; without a GPU, VERL_PLATFORM=cpu engine=cpu"
    elif name == "sglang":
        remedy = "make sglang in a checkout, then start it with .venv-sglang/bin/python; engine=cpu needs neither"
    else:
        remedy = "engine=cpu"
    raise ConfigError(f"{name} is not installed in {sys.prefix}", key=_NAME_KEY, remedy=remedy)


def check_gpus(config: DictConfig) -> None:
    """Validate that this machine has the GPUs that verl will ask Ray for.

    Raises:
        ConfigError: it has fewer, and the run does not join a Ray cluster, which may have them.
    """
    if config.trainer.device != "cuda" or _joins_a_cluster(config):
        return
    import torch

    there = torch.cuda.device_count()
    own, engines = int(config.trainer.n_gpus_per_node), 0
    if config.trainer.use_v1 and config.trainer.v1.trainer_mode in ("separate_async", SEPARATE_MODE):
        engines = int(config.actor_rollout_ref.rollout.nnodes * config.actor_rollout_ref.rollout.n_gpus_per_node)
    if there >= own + engines:
        return
    beside = f", {engines} more are the engine's (actor_rollout_ref.rollout.n_gpus_per_node)" if engines else ""
    problem = f"is {own}{beside}, and {f'this machine has {there}' if there else 'no GPU is available'}"
    remedy = "start it where they are, or join a cluster (RAY_ADDRESS); VERL_PLATFORM=cpu engine=cpu needs none"
    raise ConfigError(problem, key="trainer.n_gpus_per_node", remedy=remedy)


def _joins_a_cluster(config: DictConfig) -> bool:
    """Whether Ray finds a running cluster, or has to: then other machines may have what this one lacks."""
    given = OmegaConf.select(config, "ray_kwargs.ray_init.address") or os.environ.get("RAY_ADDRESS")
    temporary = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    # What `ray start` writes and `ray.init` looks for.
    return config.trainer.nnodes > 1 or bool(given) or Path(temporary, "ray", "ray_current_cluster").exists()


def check_cpu_engine(config: DictConfig) -> None:
    """Validate where our engine computes and in what, and warn where the weights exceed what Ray holds in memory.

    Raises:
        ConfigError: `rollout.dtype` is not a type that the engine has, or it is to share a GPU that verl does not use.
    """
    rollout, key = config.actor_rollout_ref.rollout, "ray_kwargs.ray_init.object_store_memory"
    if rollout.name != ROLLOUT_NAME:
        return
    if rollout.dtype not in _CPU_DTYPES:
        remedy = f"one of {', '.join(_CPU_DTYPES)}"
        raise ConfigError(f"is {rollout.dtype!r}", key="actor_rollout_ref.rollout.dtype", remedy=remedy)
    device = OmegaConf.select(rollout, f"engine_kwargs.{ROLLOUT_NAME}.device")
    if device == "cuda" and config.trainer.device != "cuda":
        raise ConfigError(
            f"is 'cuda', and trainer.device is {config.trainer.device!r}",
            key=f"actor_rollout_ref.rollout.engine_kwargs.{ROLLOUT_NAME}.device",
            remedy="engine=transformers",
        )
    files = Path(str(config.actor_rollout_ref.model.path)).glob("*.safetensors")
    # The trainer sends all weights as one object, in float32.
    needed = 4 * sum(math.prod(shape) for file in files for shape in _shapes(file))
    given = OmegaConf.select(config, key)
    if given is not None and needed > given:
        log.warning(
            "the model's weights do not fit in Ray's object store: it writes them to disk after each update",
            key=key,
            bytes=needed,
            remedy=f"set it to {2 * needed}, or engine=cpu_135m",
        )


def _shapes(file: Path) -> list[list[int]]:
    """The shapes of the tensors in a safetensors file, without reading them."""
    with safe_open(file, "np") as opened:
        return [opened.get_slice(name).get_shape() for name in opened.keys()]
