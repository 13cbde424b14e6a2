"""What the tests of the verl adapter share."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import AsyncIterator, Iterator

import pytest

# Without the verl extra there is nothing here to test.
collect_ignore_glob = [] if importlib.util.find_spec("verl") else ["test_*.py"]


@pytest.fixture(scope="module")
def _queue() -> Iterator[None]:
    import ray
    import transfer_queue as tq
    from omegaconf import OmegaConf

    os.environ["RAY_AUTH_MODE"] = "disabled"
    ray.init(num_cpus=4, include_dashboard=False, logging_level="ERROR")
    tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
    yield
    tq.close()
    ray.shutdown()


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A Ray in which the job's statistics collector, an actor, can run."""
    import ray

    os.environ["RAY_AUTH_MODE"] = "disabled"
    ray.init(num_cpus=1, include_dashboard=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.fixture
def transfer_queue(_queue: None) -> Iterator[None]:
    """verl's TransferQueue, in a Ray of this process; empty at the end of each test."""
    import transfer_queue as tq

    yield
    if left := tq.kv_list().get("train"):
        tq.kv_clear(partition_id="train", keys=list(left))


@pytest.fixture
async def closed_worker(anyio_backend: str) -> AsyncIterator[None]:
    """Ends the servers and the trace store of the process-wide worker state after each test."""
    from mcp_rollout.rollout.verl.runtime import WORKER

    yield
    await WORKER.close()
