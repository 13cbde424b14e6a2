"""The training configuration in this process, as verl's workers get it."""

from __future__ import annotations

from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

CONFIGS = Path(__file__).parents[2] / "configs"


def composed(model: Path, *overrides: str) -> DictConfig:
    """`configs/mcp_grpo.yaml` for a model on this CPU, without rows."""
    base = [
        "hydra.searchpath=[pkg://verl.trainer.config]",
        "engine=cpu",
        "data.train_files=none",
        f"actor_rollout_ref.model.path={model}",
    ]
    with initialize_config_dir(str(CONFIGS), version_base=None):
        return compose("mcp_grpo", overrides=[*base, *overrides])
