"""Our gateway, whose worlds are behind `mcp-rollout serve` in a process of its own, which calls the server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from lab.benchmarks.faults.adapters import gateway_client
from lab.benchmarks.faults.workload import Open, main
from lab.benchmarks.serve_cost import served
from mcp_rollout.gateway.remote.hosts import HostConfig, HostList


@contextmanager
def serving(target: dict[str, Any], best: bool) -> Generator[str]:
    """The address of `serve` in front of the server."""
    entry = gateway_client.config(target, best).servers["faults"].model_dump(mode="json", exclude_unset=True)
    with served({"mcpServers": {"faults": entry}}) as (_, url):
        yield url


@asynccontextmanager
async def connect(target: dict[str, Any], best: bool) -> AsyncGenerator[Open]:
    with serving(target, best) as url:
        async with gateway_client.connect(target, best, HostList([HostConfig(url=url)])) as opened:
            yield opened


if __name__ == "__main__":
    main(connect)
