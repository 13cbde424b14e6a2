"""Agent workers that Ray ends itself: for the memory of their node, or with their node."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

pytestmark = [
    pytest.mark.verl,
    pytest.mark.full,
    pytest.mark.usefixtures("imported_verl", "transfer_queue"),
    pytest.mark.timeout(600),
]

NEVER = {"RAY_memory_monitor_refresh_ms": "0"}
AT_ONCE = {"RAY_memory_usage_threshold": "0.001", "RAY_memory_monitor_refresh_ms": "1000"}
"""Ray's memory monitor finds the node short of memory whatever it holds."""
ENDS: dict[str, Callable[[Any, Any], None]] = {
    "OutOfMemoryError": lambda cluster, node: None,
    "ActorDiedError": lambda cluster, node: cluster.remove_node(node, allow_graceful=False),
}


@pytest.fixture(scope="module")
def _cluster() -> Iterator[Any]:
    import ray
    from ray.cluster_utils import Cluster

    os.environ["RAY_AUTH_MODE"] = "disabled"
    cluster = Cluster()
    cluster.add_node(num_cpus=4, include_dashboard=False, resources={"calm": 9}, env_vars=NEVER)
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="module")
def _queue(_cluster: Any) -> Iterator[None]:
    import transfer_queue as tq
    from omegaconf import OmegaConf

    tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
    yield
    tq.close()


@pytest.mark.parametrize("error", ENDS)
def test_the_prompts_of_a_worker_that_ray_ends_are_played_again(_cluster: Any, error: str) -> None:
    from gated_worker import SAMPLES, Crew, sample, started_gate

    monitor = AT_ONCE if error == "OutOfMemoryError" else NEVER
    node = _cluster.add_node(num_cpus=1, resources={error: 1}, env_vars=monitor)
    gate = started_gate(resources={"calm": 1})
    with capture_logs() as logs:
        crew = Crew(gate, first={"resources": {error: 1}}, resources={"calm": 1})
        crew.issue("a", "b")
        ENDS[error](_cluster, node)
        assert crew.was_replaced.wait(250)
        gate.open.remote("a", "b")
        assert sample(2) == [f"{uid}_{session}_0" for uid in "ab" for session in range(SAMPLES)]
        crew.workers.close()
    assert crew.replaced == 1 and crew.given_up == []
    (told,) = [log for log in logs if log["event"] == "agent worker died and was replaced"]
    assert told["problem"].startswith(error)
    assert not [log for log in logs if log["log_level"] == "error"]


def test_the_prompts_of_a_worker_that_cannot_be_replaced_end_without_it(_cluster: Any) -> None:
    """With two messages, however often it is tried."""
    from gated_worker import SAMPLES, Crew, sample, started_gate

    class Failing(Crew):
        def replacement(self, number: int) -> Any:
            raise RuntimeError(f"no worker {number}")

    _cluster.add_node(num_cpus=1, resources={"failing": 1}, env_vars=AT_ONCE)
    gate = started_gate(resources={"calm": 1})
    with capture_logs() as logs:
        crew = Failing(gate, first={"resources": {"failing": 1}}, resources={"calm": 1}, start_timeout_s=60)
        crew.issue("c", "d")
        gate.open.remote("c", "d")
        assert sample(2) == [f"d_{session}_0" for session in range(SAMPLES)]
        crew.workers.close()
    told = [log["event"] for log in logs if log["log_level"] == "error"]
    assert [event.partition(" are ")[2] or event for event in told] == [
        "agent workers could not be looked after; tried again",
        "given up, with their prompts",
    ]
