"""What the preflight says about worlds on shards: in the Ray that verl starts, and in a cluster that it connects to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from gateway.errors import ConfigError
from rollout.environment.config import Environment

pytestmark = [pytest.mark.verl, pytest.mark.usefixtures("imported_verl")]

SHARDS = Environment.model_validate(
    {"name": "worlds", "servers": {"world": {"command": "server"}}, "hosts": {"ray": {"min": 2, "max": 2}}}
)
STORAGE = {"backend": {"SimpleStorage": {"required_node_resource": "tq_storage"}}}


def config(*, ray_init: dict[str, Any] | None = None, storage: dict[str, Any] | None = None) -> DictConfig:
    return OmegaConf.create({"ray_kwargs": {"ray_init": ray_init or {}}, "transfer_queue": storage or {}})


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A cluster that was started on this machine, to which `ray.init()` connects; it has no node for shards."""
    from ray.cluster_utils import Cluster

    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    size = {"object_store_memory": 80 << 20, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **size})
    yield made
    made.shutdown()


@pytest.mark.parametrize("address", [{}, {"address": "local"}])
def test_a_ray_of_its_own_needs_the_resources_of_all_shards(address: dict[str, str]) -> None:
    from rollout.verl.shard_checks import check_shards

    check_shards(SHARDS, config(ray_init={"resources": {"mcp_shard": 2}, **address}))
    for resources in ({}, {"mcp_shard": 1}):
        with pytest.raises(ConfigError, match=r"ray_kwargs.ray_init.resources: has no mcp_shard, and worlds takes 2"):
            check_shards(SHARDS, config(ray_init={"resources": resources, **address}))


def test_a_cluster_of_this_machine_is_looked_at_without_an_address(cluster: Any) -> None:
    from rollout.verl.shard_checks import check_shards

    with pytest.raises(ConfigError, match="required_node_resource: is not given"):
        check_shards(SHARDS, config())
    with pytest.raises(ConfigError, match=r"worlds: hosts.ray: none of 1 nodes of the Ray cluster has mcp_shard: 1"):
        check_shards(SHARDS, config(storage=STORAGE))
    cluster.add_node(num_cpus=0, resources={"mcp_shard": 1}, object_store_memory=80 << 20)
    check_shards(SHARDS, config(storage=STORAGE))
