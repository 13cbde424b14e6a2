"""Ray and TransferQueue, which take 20 s of CPU to start and to end: once for all files here."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package")
def cluster() -> Iterator[None]:
    """A Ray in which the job's statistics collector, an actor, can run."""
    import ray

    os.environ["RAY_AUTH_MODE"] = "disabled"
    ray.init(num_cpus=4, include_dashboard=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.fixture(scope="package")
def _queue(cluster: None) -> Iterator[None]:
    import transfer_queue as tq
    from omegaconf import OmegaConf

    tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
    yield
    tq.close()
