"""The Python SDK's client, with `mcp-rollout serve` between it and the server: an address of each trajectory's own."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from lab.benchmarks.faults.adapters import sdk_client, serve_client
from lab.benchmarks.faults.workload import Open, main


@asynccontextmanager
async def connect(target: dict[str, Any], best: bool) -> AsyncGenerator[Open]:
    with serve_client.serving(target, best) as url:
        yield lambda trajectory: sdk_client.calling(f"{url}/{trajectory}", best)


if __name__ == "__main__":
    main(connect)
