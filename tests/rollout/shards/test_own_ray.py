"""A Ray of this process's own, with what the shards of a run take."""

from __future__ import annotations

import pytest

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.environment.hosts_config import ShardsConfig

pytestmark = [pytest.mark.verl, pytest.mark.usefixtures("imported_verl")]


@pytest.mark.full
def test_a_ray_that_is_started_for_shards_has_their_resources(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    from mcp_rollout.rollout.shards.director import connected

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    shards = {"one": ShardsConfig(max=2), "two": ShardsConfig(resources={"mcp_shard": 0.5, "fast": 1.0})}
    with connected(shards):
        assert {name: ray.cluster_resources().get(name) for name in ("mcp_shard", "fast")} == {
            "mcp_shard": 3.0,
            "fast": 1,
        }
        with pytest.raises(ConfigError, match=r"three: none of 1 nodes of the Ray cluster has .*kind: tpu"):
            with connected({"three": ShardsConfig(labels={"kind": "tpu"})}):
                pass
        assert ray.is_initialized()  # it was not that block's
    assert not ray.is_initialized()
