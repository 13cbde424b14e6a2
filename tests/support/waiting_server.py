"""An echo server whose tool answers trajectories with the seed 1 once the engine has got its second weights.

    python waiting_server.py DIRECTORY

The directory has `weights_VERSION.pt`. So a trainer's first step falls into such a call, at any speed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
from echo_server import judge
from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("echo", log_level="ERROR")
server.tool()(judge)


@server.tool()
async def shout(text: str, ctx: Context, times: int = 1) -> str:
    """Say it louder."""
    if (ctx.request_context.meta or {})["mcp-rollout/seed"] == 1:
        with anyio.fail_after(300):
            while _versions() < 2:  # noqa: ASYNC110 - another process writes them
                await anyio.sleep(0.05)
    return " ".join([text.upper()] * times)


def _versions() -> int:
    return len(list(Path(sys.argv[1]).glob("weights_*.pt")))


if __name__ == "__main__":
    server.run("stdio")
