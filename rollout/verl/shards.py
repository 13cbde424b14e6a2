"""Worlds on shards: the job's hold on their director."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.environment.config import environment_names, load_environment
from mcp_rollout.rollout.shards.director import shard_director
from mcp_rollout.rollout.verl.settings import Settings


def held_director(config: DictConfig) -> Any:
    """Handle of the shards' director, where an environment of the run may have shards; else None.

    The trainer's process makes it: Ray ends an actor with the process that made it, and agent workers may die.
    """
    settings = Settings.of(config)
    for name in environment_names(settings.environments_dir):
        try:
            hosts = settings.apply(load_environment(name, settings.environments_dir)).hosts
        except ConfigError:  # reported where a row names the environment
            continue
        if hosts is not None and hosts.ray is not None:
            return shard_director()
    return None
