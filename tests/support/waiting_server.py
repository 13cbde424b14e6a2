"""An echo server whose tool answers trajectories with the seed 1 when the engine has got newer weights.

    python waiting_server.py DIRECTORY

The directory is that of `weights_VERSION.pt`. So a trainer's step falls into the middle of such a call, at any speed.
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
        before = _versions()
        with anyio.fail_after(300):
            while _versions() == before:  # noqa: ASYNC110 - another process writes them
                await anyio.sleep(0.05)
    return " ".join([text.upper()] * times)


def _versions() -> int:
    return len(list(Path(sys.argv[1]).glob("weights_*.pt")))


if __name__ == "__main__":
    server.run("stdio")
