"""The built-in agent with tools that take simulated time: 0.2 to 2 s each, by trajectory and turn."""

from __future__ import annotations

import os
from random import Random

import anyio

from mcp_rollout.rollout.loop.turns import Turns


def tool_s(key: str, turn: int) -> float:
    return Random(f"{key}/{turn}").uniform(0.2, 2.0)


class SlowTools:
    async def play(self, turns: Turns) -> None:
        scale, key = float(os.environ.get("GENERATION_S", "1")), str(id(turns))
        while True:
            parsed = await turns.generate()
            if parsed.calls:
                await anyio.sleep(scale * tool_s(key, turns.taken))
                await turns.call_tools()
            elif turns.has_user:
                await turns.ask_user()
            else:
                return
