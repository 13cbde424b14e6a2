"""State per trajectory: apart, bounded, and gone when it is dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from mcp import Client
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import CallToolResult

from mcp_rollout.mcp_servers.kit import TrajectoryState

pytestmark = pytest.mark.anyio
ErrorOf = Callable[[CallToolResult], str]


def counting_server(state: TrajectoryState[list[int]]) -> MCPServer:
    server = MCPServer("counter", log_level="WARNING")

    @server.tool()
    async def count(ctx: Context) -> int:
        state.of(ctx).append(1)
        return len(state.of(ctx)) - 1 + state.of(ctx)[0]

    @server.tool()
    async def reset(first: int, ctx: Context) -> None:
        state.reset(ctx, [first])

    @server.tool()
    async def drop(ctx: Context) -> None:
        state.drop(ctx)

    return server


async def ask(
    client: Client, tool: str, trajectory: Any = None, /, seed: Any = None, **arguments: Any
) -> CallToolResult:
    meta: Any = {}
    if trajectory is not None:
        meta["mcp-rollout/trajectory"] = trajectory
    if seed is not None:
        meta["mcp-rollout/seed"] = seed
    return await client.call_tool(tool, arguments, meta=meta)


async def counted(client: Client, *arguments: Any, **options: Any) -> int:
    result = await ask(client, "count", *arguments, **options)
    assert result.structured_content is not None, result
    return result.structured_content["result"]


async def test_interleaved_trajectories_do_not_see_each_other():
    async with Client(counting_server(TrajectoryState(lambda seed: [0]))) as client:
        seen = [await counted(client, name) for name in ("a", "b", "a", "a", "b")]
    assert seen == [1, 1, 2, 3, 2]


async def test_a_first_request_gets_a_state_made_from_its_seed():
    async with Client(counting_server(TrajectoryState(lambda seed: [seed]))) as client:
        assert await counted(client, "a", seed=40) == 41


async def test_a_client_that_knows_of_no_trajectories_has_one_state_and_can_drop_it():
    async with Client(counting_server(TrajectoryState(lambda seed: [0]))) as client:
        assert [await counted(client), await counted(client)] == [1, 2]
        await ask(client, "drop")
        assert await counted(client) == 1


async def test_without_a_factory_a_trajectory_begins_with_reset(error_of: ErrorOf):
    async with Client(counting_server(TrajectoryState())) as client:
        assert "call reset first" in error_of(await ask(client, "count", "a"))
        await ask(client, "reset", "a", first=5)
        assert await counted(client, "a") == 6


async def test_one_trajectory_too_many_is_refused_and_none_is_evicted(error_of: ErrorOf):
    async with Client(counting_server(TrajectoryState(lambda seed: [0], max_trajectories=2))) as client:
        for name in ("a", "b"):
            await counted(client, name)
        assert "max_trajectories" in error_of(await ask(client, "count", "c"))
        assert await counted(client, "a") == 2
        await ask(client, "drop", "b")
        assert await counted(client, "c") == 1


async def test_a_late_request_does_not_bring_a_dropped_trajectory_back(error_of: ErrorOf):
    state = TrajectoryState(lambda seed: [0])
    async with Client(counting_server(state)) as client:
        await counted(client, "a")
        await ask(client, "drop", "a")
        assert "was released" in error_of(await ask(client, "count", "a"))
        assert len(state) == 0
        await ask(client, "reset", "a", first=1)
        assert await counted(client, "a") == 2


async def test_what_is_remembered_of_dropped_trajectories_is_bounded():
    state = TrajectoryState(lambda seed: [0], max_trajectories=3)
    async with Client(counting_server(state)) as client:
        for index in range(10):
            await counted(client, f"t{index}")
            await ask(client, "drop", f"t{index}")
        assert await counted(client, "t0") == 1  # forgotten, so it may begin again


@pytest.mark.parametrize(("trajectory", "seed"), [(7, None), ("a", "seven")])
async def test_ids_and_seeds_of_the_wrong_type_are_refused(trajectory: Any, seed: Any, error_of: ErrorOf):
    async with Client(counting_server(TrajectoryState(lambda seed: [0]))) as client:
        assert "_meta['mcp-rollout/" in error_of(await ask(client, "count", trajectory, seed=seed))
