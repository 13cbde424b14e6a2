"""The Ray cluster of a process that is no part of a job of Ray's yet."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager

import ray

from gateway.errors import ConfigError
from rollout.environment.hosts_config import ShardsConfig
from rollout.shards.director import shard_director


@contextmanager
def connected() -> Generator[None]:
    """Connect to the cluster that RAY_ADDRESS names, or start one here; the director lives as long as the block."""
    ours = not ray.is_initialized()
    if ours:
        ray.init(include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    director = shard_director()  # the handle keeps it
    try:
        yield
    finally:
        del director
        if ours:
            ray.shutdown()


def check_nodes(config: ShardsConfig, *, key: str) -> None:
    """Raise ConfigError where no living node of the cluster has what a shard takes."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    for node in nodes:
        has, labels = node["Resources"], node.get("Labels", {})
        if all(has.get(name, 0) >= most for name, most in config.resources.items()) and (
            config.labels.items() <= labels.items()
        ):
            return
    wanted = ", ".join(f"{name}: {value}" for name, value in (config.resources | config.labels).items())
    raise ConfigError(
        f"none of {len(nodes)} nodes of the Ray cluster has {wanted}",
        key=key,
        remedy="start nodes for shards: ray start --address=HEAD:6379 --num-cpus=0 --resources='{\"mcp_shard\": 1}'",
    )
