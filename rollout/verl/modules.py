"""Modules that verl's processes import first, and the names that verl looks up late, which they may register."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping

import structlog
from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY
from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY
from verl.utils.import_utils import import_external_libs

from mcp_rollout.gateway.config.pydantic_errors import near
from mcp_rollout.gateway.errors import ConfigError, Faults, raise_all
from mcp_rollout.rollout.verl.settings import ESTIMATORS, TRAINER_MODES

log = structlog.get_logger(__name__)

_VARIABLE = "VERL_USE_EXTERNAL_MODULES"
MODULES_KEY = f"ray_kwargs.ray_init.runtime_env.env_vars.{_VARIABLE}"
"""Where verl's configuration names the modules that its processes import first."""


def external_modules(config: DictConfig) -> list[str]:
    return _names(OmegaConf.select(config, MODULES_KEY))


def hidden_modules(config: DictConfig) -> list[str]:
    """Modules that this process's environment names and verl's processes would not import."""
    given = external_modules(config)
    return [name for name in _names(os.environ.get(_VARIABLE)) if given and name not in given]


def _names(modules: str | None) -> list[str]:
    return [name.strip() for name in (modules or "").split(",") if name.strip()]


def import_modules(config: DictConfig) -> list[str]:
    """Import in this process what verl's processes import first; returns modules that are not on this machine."""
    missing: list[str] = []
    for module in external_modules(config):
        try:
            import_external_libs([module])
        except ImportError:  # it may be on the nodes of the Ray cluster only
            missing.append(module)
    return missing


def registered_estimators() -> set[str]:
    """verl's own estimators, ours, and those that modules imported so far have registered."""
    return {*ADV_ESTIMATOR_REGISTRY, *ESTIMATORS}


_REGISTERED: Mapping[str, tuple[str, Callable[[], Collection[str]]]] = {
    "algorithm.adv_estimator": ("estimator", registered_estimators),
    "actor_rollout_ref.actor.policy_loss.loss_mode": ("loss", lambda: POLICY_LOSS_REGISTRY),
    "trainer.v1.trainer_mode": ("mode", lambda: {*TRAINER_REGISTRY, *TRAINER_MODES}),
}


def check_names(config: DictConfig) -> None:
    """Validate names that verl looks up after minutes.

    Raises:
        ConfigError: a name is not registered, and all modules that may register it can be imported here.
    """
    faults, missing = Faults(), import_modules(config)
    for key, (what, registered) in _REGISTERED.items():
        name, known = str(OmegaConf.select(config, key)), registered()
        if name in known:
            continue
        if missing:
            log.warning("modules that may register the name cannot be imported", key=key, name=name, modules=missing)
            continue
        remedy = f"modules in {MODULES_KEY} may register it; {near(name, known, f'{what} names')}"
        faults.append(ConfigError(f"unknown {what} {name!r}", key=key, remedy=remedy))
    raise_all(faults)
