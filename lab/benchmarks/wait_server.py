"""The world of `benchmarks sessions`: state per trajectory, and a step that waits on the server.

    python -m lab.benchmarks.wait_server kit|sdk [PORT]

The same tools over stdio or HTTP, served by the kit or by the SDK alone.
"""

from __future__ import annotations

import sys

import anyio
from mcp.server.mcpserver import Context, MCPServer

from mcp_rollout.mcp_servers.kit import CHANGE, Harness, InProcess, serve
from mcp_rollout.mcp_servers.kit.process import raise_open_files

MODULE = "lab.benchmarks.wait_server"
WORLDS = 1 << 17


class World:
    """A trajectory's steps; the seed makes the numbers of two trajectories differ."""

    __slots__ = ("seed", "steps")

    def __init__(self, task: str, seed: int) -> None:
        self.seed, self.steps = seed, 0


def create_server() -> MCPServer:
    server = MCPServer("wait", log_level="ERROR")
    harness = Harness(server, World, max_trajectories=WORLDS)

    @server.tool(annotations=CHANGE)
    async def step(wait_s: float, ctx: Context) -> int:  # pyright: ignore[reportUnusedFunction]
        """Wait, then take a step. Returns a number that only this step of this trajectory has."""
        await anyio.sleep(wait_s)
        world = harness.world(ctx)
        world.steps += 1
        return world.seed * 1000 + world.steps

    return server


def in_process() -> InProcess:
    """The factory of a server in the client's process."""
    return InProcess(create_server())


def main(kind: str, port: int | None) -> None:
    http = None if port is None else ("127.0.0.1", port)
    if kind == "kit":
        serve(create_server(), http)
    elif http is None:
        create_server().run("stdio")
    else:
        raise_open_files()
        create_server().run("streamable-http", host=http[0], port=http[1])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None)
