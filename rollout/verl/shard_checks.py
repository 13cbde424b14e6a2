"""Worlds on shards: what the cluster needs for them, and the job's hold on their director."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from omegaconf import DictConfig, OmegaConf
from ray._private.services import get_ray_address_from_environment

from gateway.errors import ConfigError
from rollout.environment.config import Environment, environment_names
from rollout.shards.director import check_nodes, shard_director
from rollout.verl.settings import Settings

STORAGE_KEY = "transfer_queue.backend.SimpleStorage.required_node_resource"
_INIT = "ray_kwargs.ray_init"


def check_shards(environment: Environment, config: DictConfig) -> None:
    """Validate that the cluster has nodes for an environment's shards, and that TransferQueue keeps off them.

    Raises:
        ConfigError: it has none, or TransferQueue would pin its storage to every node.
    """
    if environment.hosts is None or (shards := environment.hosts.ray) is None:
        return
    given_address: Any = OmegaConf.select(config, f"{_INIT}.address")
    # As `ray.init` finds it: RAY_ADDRESS, or the last cluster that was started on this machine.
    address = given_address or get_ray_address_from_environment(given_address, None)
    if address in (None, "local"):  # verl starts a Ray of one node here
        given: Any = OmegaConf.to_container(OmegaConf.select(config, f"{_INIT}.resources") or OmegaConf.create({}))
        for name, least in shards.resources.items():
            if given.get(name, 0) < least * shards.min:
                raise ConfigError(
                    f"has no {name}, and {environment.name} takes {least * shards.min:g} for its shards",
                    key=f"{_INIT}.resources",
                    remedy=f"'+{_INIT}.resources={{{name}: {least * shards.min:g}}}', or connect to a cluster",
                )
        return
    if not OmegaConf.select(config, STORAGE_KEY):
        raise ConfigError(
            "is not given, so TransferQueue would pin its storage to the nodes of shards as well",
            key=STORAGE_KEY,
            remedy="start the trainer's nodes with --resources='{\"tq_storage\": 1}' and name tq_storage here",
        )
    with _connected(str(address)):
        check_nodes(shards, key=f"{environment.file or environment.name}: hosts.ray")


@contextmanager
def _connected(address: str) -> Iterator[None]:
    """Look at a cluster, and leave it: verl connects by itself later."""
    if ray.is_initialized():
        yield
        return
    ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


def held_director(config: DictConfig) -> Any:
    """Handle of the shards' director, where an environment of the run may have shards; else None.

    The trainer's process makes it: Ray ends an actor with the process that made it, and agent workers may die.
    """
    settings = Settings.of(config)
    for name in environment_names(settings.environments_dir):
        try:
            hosts = settings.load(name).hosts
        except ConfigError:  # reported where a row names the environment
            continue
        if hosts is not None and hosts.ray is not None:
            return shard_director()
    return None
