"""The server that `bench call` calls: `python -m rollout.cli.bench_server stdio|http`.

Over HTTP it prints its port.
"""

from __future__ import annotations

import sys

import anyio
import anyio.lowlevel
import uvicorn
from mcp.server.mcpserver import MCPServer


def create_server() -> MCPServer:
    """One tool, `echo`, that does as little as a tool can."""
    server = MCPServer("bench", log_level="ERROR")

    @server.tool()
    def echo(text: str, times: int = 1) -> str:  # pyright: ignore[reportUnusedFunction]
        """Echo."""
        return text * times

    return server


async def serve_http() -> None:
    """Serve on a free port of the loopback interface, which is printed on a line of its own."""
    running = uvicorn.Server(uvicorn.Config(create_server().streamable_http_app(), port=0, log_level="critical"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(running.serve)
        while not running.started:
            await anyio.lowlevel.checkpoint()
        sys.stdout.write(f"{running.servers[0].sockets[0].getsockname()[1]}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1] == "http":
        anyio.run(serve_http)
    else:
        create_server().run("stdio")
