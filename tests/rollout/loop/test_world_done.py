"""A trusted server ends the trajectory with a tool's result, as an episode ends with a step."""

from __future__ import annotations

from pathlib import Path

import pytest
from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult
from worlds import play, saying

from mcp_rollout.mcp_servers.kit import tool_result
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.trace.record import StopReason
from mcp_rollout.rollout.types import Call

pytestmark = pytest.mark.anyio
STEP = hermes.write(calls=[Call(name="step", arguments={})])


def game() -> MCPServer:
    server, taken = MCPServer("game", log_level="ERROR"), list[int]()

    @server.tool()
    async def step() -> CallToolResult:
        taken.append(1)
        return tool_result(f"step {len(taken)}", reward=0.5, done=len(taken) == 2)

    return server


@pytest.mark.parametrize("trusted", [True, False])
async def test_the_last_step_ends_the_trajectory_with_its_reward_counted(tmp_path: Path, trusted: bool) -> None:
    limits = Limits(response_tokens=20_000, assistant_turns=4)
    trace = await play({"game": game()}, saying(*[STEP] * 9), tmp_path, limits=limits, trusted=trusted)
    assert trace.reward is not None
    if trusted:
        assert (trace.stop_reason, len(trace.turns), trace.reward.score) == (StopReason.WORLD_DONE, 2, 1.0)
        assert trace.messages[-1]["content"] == "step 2" and not trace.ends_undelivered
        assert trace.stop_reason is not None and not trace.stop_reason.is_truncated
    else:
        assert (trace.stop_reason, len(trace.turns), trace.reward.score) == (StopReason.TURN_LIMIT, 4, 0.0)
