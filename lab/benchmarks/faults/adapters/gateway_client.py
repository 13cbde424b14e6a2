"""Our gateway: a lease for each trajectory, with a process of its own or a protocol session of its own."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import structlog

from lab.benchmarks.faults.workload import Call, Open, main
from mcp_rollout.gateway.config.models import GatewayConfig
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.gateway.remote.hosts import HostList

BEST = {"call_timeout_s": 2, "close_timeout_s": 1}


def config(target: dict[str, Any], best: bool) -> GatewayConfig:
    """The scope is what `mcp-rollout doctor` finds for such a server."""
    scope = "process" if "command" in target else "session"
    return GatewayConfig.model_validate({"servers": {"faults": {**target, "scope": scope, **(BEST if best else {})}}})


def leasing(gateway: Gateway) -> Open:
    @asynccontextmanager
    async def opened(trajectory: str) -> AsyncGenerator[Call]:
        async with gateway.lease(trajectory=trajectory, task=None, seed=1) as session:

            async def call(tool: str, arguments: dict[str, Any]) -> tuple[str, bool]:
                result = await session.call(tool, arguments)
                return result.text, result.is_error

            yield call
            await session.wait_for_tool_changes()  # as a rollout does before it scores

    return opened


@asynccontextmanager
async def connect(target: dict[str, Any], best: bool, hosts: HostList | None = None) -> AsyncGenerator[Open]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    async with Gateway(config(target, best), hosts=hosts) as gateway:
        yield leasing(gateway)


if __name__ == "__main__":
    main(connect)
