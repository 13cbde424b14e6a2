"""What the tests of the verl adapter share."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator, Iterator

import pytest

# Without the verl extra there is nothing here to test.
collect_ignore_glob = [] if importlib.util.find_spec("verl") else ["test_*.py", "on_ray"]


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
