"""An environment whose server and agent tell their secrets wherever they can."""

import os
import sys
from collections.abc import Iterator
from typing import Any

from mcp.server.mcpserver import Context, MCPServer

from mcp_rollout.mcp_servers.kit import Call, ExpertTurn, Harness, Message, Score, Split, TaskItem, ToolError, main

TOLD = f"{os.environ.get('SHOP_API_KEY')} {os.environ.get('PLAIN_PASSWORD')} {sys.argv[-1]}"

server = MCPServer("telling", instructions="Behave.", log_level="WARNING")
harness = Harness(server, lambda task, seed: task)


@server.tool()
async def read(ctx: Context) -> str:
    """Reads."""
    return f"read {TOLD}"


@server.tool()
async def refuse(ctx: Context) -> str:
    """Refuses."""
    raise ToolError(f"refused {TOLD}")


@server.tool()
async def breaks(ctx: Context) -> str:
    """Breaks."""
    raise RuntimeError(f"broken {TOLD}")


@server.tool()
async def die(ctx: Context) -> str:
    """Ends its process."""
    sys.exit(f"dead {TOLD}")


@harness.score
def score(world: str, messages: list[Message]) -> Score:
    return Score(score=1.0)


@harness.tasks
def tasks(split: Split) -> Iterator[TaskItem]:
    yield TaskItem(task=f"{split}-0", seed=0)


@harness.start
def start(world: str) -> str:
    return "Read."


@harness.expert
def expert(world: str) -> Iterator[ExpertTurn]:
    yield ExpertTurn(calls=[Call(name=name, arguments={}) for name in ("read", "refuse", "breaks")])
    yield ExpertTurn(content="done")


class FailingAgent:
    """An agent that fails with a secret in a variable."""

    async def play(self, turns: Any) -> None:
        mine = os.environ["WANDB_API_KEY"]
        raise RuntimeError(f"an agent failed: {len(mine)}")


if __name__ == "__main__":
    if "--die" in sys.argv:
        sys.exit(f"no licence {TOLD}")
    main(server, arguments=[])
