"""An echo server whose tool answers when the trainer has taken the steps that the trajectory's seed asks for.

    python waiting_server.py DIRECTORY BATCH

A call of seed N is answered once the engine has got the weights of version N, which lie in DIRECTORY as
`weights_VERSION.pt`, and once more than half of the BATCH trajectories with seed N + 1 wait in their calls, each with a
file of its own. So a step with prompts of seed N falls into calls of the next one's, at any speed. Seeds from LAST on
wait for no other calls, and FREE waits for nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
from echo_server import judge
from mcp.server.mcpserver import Context, MCPServer

LAST, FREE = 3, 9
TIMEOUT_S = 900
server = MCPServer("echo", log_level="ERROR")
server.tool()(judge)


@server.tool()
async def shout(text: str, ctx: Context, times: int = 1) -> str:
    """Say it louder."""
    meta = ctx.request_context.meta or {}
    seed = meta["mcp-rollout/seed"]
    if seed != FREE:
        (Path(sys.argv[1]) / f"call_{seed}_{meta['mcp-rollout/trajectory']}").touch()
        with anyio.fail_after(TIMEOUT_S):
            while not _may_answer(seed):  # noqa: ASYNC110 - other processes write what it waits for
                await anyio.sleep(0.05)
    return " ".join([text.upper()] * times)


def _may_answer(seed: int) -> bool:
    home, batch = Path(sys.argv[1]), int(sys.argv[2])
    if max((int(path.stem.rpartition("_")[2]) for path in home.glob("weights_*.pt")), default=-1) < seed:
        return False
    return seed >= LAST or len(list(home.glob(f"call_{seed + 1}_*"))) > batch // 2


if __name__ == "__main__":
    server.run("stdio")
