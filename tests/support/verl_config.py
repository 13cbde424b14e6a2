"""The training configuration in this process, as verl's workers get it."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

CONFIGS = Path(__file__).parents[2] / "configs"
_GROUPS = ("engine", "recipe")


def composed(model: Path, *overrides: str) -> DictConfig:
    """`configs/mcp_grpo.yaml` for a model, by default on this CPU, without rows.

    Hydra composes a configuration in half a second, so it does so once for each choice of groups; overrides of values
    are set in a copy, as it sets them.
    """
    parsed = OverridesParser.create().parse_overrides([f"actor_rollout_ref.model.path={model}", *overrides])
    chosen = {each.key_or_group: str(each.value()) for each in parsed if each.key_or_group in _GROUPS}
    config = deepcopy(_of_groups(tuple(chosen.items())))
    for each in parsed:
        if each.key_or_group not in chosen:
            added = each.is_add() or each.is_force_add()
            OmegaConf.update(config, each.key_or_group, each.value(), merge=True, force_add=added)
    return config


@cache
def _of_groups(chosen: tuple[tuple[str, str], ...]) -> DictConfig:
    groups = [f"{group}={name}" for group, name in {"engine": "cpu", **dict(chosen)}.items()]
    with initialize_config_dir(str(CONFIGS), version_base=None):
        return compose(
            "mcp_grpo", overrides=["hydra.searchpath=[pkg://verl.trainer.config]", "data.train_files=none", *groups]
        )
