"""Leases of forked processes, for tests."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from mcp_rollout import Gateway, GatewayConfig, Session

SERVER = Path(__file__).parents[1] / "gateway" / "forking_server.py"


def config(start: str = "fork", **entry: Any) -> GatewayConfig:
    whole = {"command": sys.executable, "args": [str(SERVER), "--flag"], "scope": "process", "start": start, **entry}
    return GatewayConfig.model_validate({"servers": {"world": {"required": True, **whole}}})


@asynccontextmanager
async def leases(gateway: Gateway, count: int) -> AsyncGenerator[list[Session]]:
    """So many sessions at a time. The first process of a gateway is always spawned, and is not among them."""
    async with AsyncExitStack() as stack:
        sessions = [
            await stack.enter_async_context(gateway.lease(trajectory=f"t{number}", task=None, seed=number))
            for number in range(count + 1)
        ]
        yield sessions[1:]


async def ask(session: Session, tool: str, **arguments: Any) -> Any:
    return json.loads((await session.call(tool, arguments)).text)
