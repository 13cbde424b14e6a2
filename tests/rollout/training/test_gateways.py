"""A worker's gateways end with it, those included that were still to start."""

from __future__ import annotations

import asyncio

import pytest

from mcp_rollout.gateway.config.models import GatewayConfig
from mcp_rollout.rollout.training.gateways import Gateways

pytestmark = pytest.mark.anyio

FACTORY = "mcp_rollout.mcp_servers.calculator.server:create_server"


async def test_a_start_that_has_not_begun_when_the_worker_ends_is_not_begun_afterwards() -> None:
    config = GatewayConfig.model_validate({"servers": {"calculator": {"factory": FACTORY, "required": True}}})
    gateways = Gateways()
    waiting = asyncio.create_task(gateways.get("a", lambda: config))
    await asyncio.sleep(0)  # it has asked for the gateway, whose task has not run yet
    await gateways.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith(("open ", "gateway "))]
