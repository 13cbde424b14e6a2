"""Small real servers in process, and an environment around them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import MCPServer

from mcp_rollout.gateway.config.models import ServerConfig
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.rollout.engines.scripted import ScriptedPolicy
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.task import Origin, Task
from mcp_rollout.rollout.loop.clock import Clock
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.loop.trajectory import roll_out
from mcp_rollout.rollout.tokens.chatml import IM_END, ByteTokens
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.store import TraceStore
from mcp_rollout.rollout.types import Policy, TokenBuilder

ROLE = "mcp-rollout/role"
REWARD = "mcp-rollout/reward"


def environment(servers: Mapping[str, MCPServer], *, trusted: bool = True, **fields: Any) -> Environment:
    """An environment over in-process servers, all of them trusted or none."""
    entries = {name: ServerConfig(factory="unused:unused", required=True, trusted=trusted) for name in servers}
    return Environment.model_validate({"name": "test", "servers": entries, **fields})


@asynccontextmanager
async def opened(made: Environment, servers: Mapping[str, MCPServer]) -> AsyncIterator[Gateway]:
    async with Gateway(made, connect=lambda _, name: servers[name]) as gateway:
        yield gateway


def task(**fields: Any) -> Task:
    values = {"environment": "test", "task": "t", "seed": 1, "prompt": ({"role": "user", "content": "Begin."},)}
    return Task.model_validate(values | fields)


def saying(*texts: str) -> Callable[[Session], Any]:
    """A policy that says these completions, in order."""

    async def policy_for(_: Session) -> Policy:
        return ScriptedPolicy(texts, ByteTokens().encode, stop=IM_END)

    return policy_for


async def play(
    servers: Mapping[str, MCPServer],
    policy_for: Callable[[Session], Any],
    directory: Path,
    *,
    limits: Limits | None = None,
    row: Task | None = None,
    clock: Clock | None = None,
    tokens: TokenBuilder | None = None,
    **fields: Any,
) -> Trace:
    """One trajectory over in-process servers, with its trace in `directory`."""
    made = environment(servers, **fields)
    async with opened(made, servers) as gateway:
        return await roll_out(
            Trace.begin("trajectory", row or task(), Origin()),
            environment=made,
            gateway=gateway,
            policy_for=policy_for,
            tokens=tokens or ByteTokens(),
            limits=limits or Limits(response_tokens=20_000),
            store=TraceStore(directory),
            clock=clock,
        )
