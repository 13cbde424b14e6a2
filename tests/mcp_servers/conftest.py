"""A trajectory played over bare MCP clients, as any program would."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from bare_players import Player, Seats, seated, text
from mcp import Client, StdioServerParameters
from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult

from mcp_rollout.mcp_servers import calculator, retail, user_simulator
from mcp_rollout.mcp_servers.retail.users import scenario


@pytest.fixture
def error_of() -> Callable[[CallToolResult], str]:
    """The text of a result that has to be an error."""

    def check(result: CallToolResult) -> str:
        assert result.is_error, text(result)
        return text(result)

    return check


@pytest.fixture
def retail_players() -> Seats:
    """`async with retail_players() as player:`, see `seated`."""
    return lambda **options: seated(retail.create_server(**options), user_simulator.create_server(scenario))


@pytest.fixture
def calculator_players() -> Seats:
    @asynccontextmanager
    async def seats() -> AsyncIterator[Callable[[str], Player]]:
        async with Client(calculator.create_server()) as world:
            yield lambda trajectory: Player(world=world, trajectory=trajectory)

    return seats


@pytest.fixture
def players_of() -> Seats:
    """`async with players_of(server) as player:` for a server that is world and, where it has `reply`, user."""

    @asynccontextmanager
    async def seats(server: MCPServer | StdioServerParameters) -> AsyncIterator[Callable[[str], Player]]:
        async with Client(server) as world:
            names = {tool.name for tool in (await world.list_tools()).tools}
            user = world if "reply" in names else None
            yield lambda trajectory: Player(world=world, user=user, trajectory=trajectory)

    return seats
