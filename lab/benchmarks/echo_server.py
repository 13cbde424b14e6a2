"""The server that `benchmarks call` calls, on each transport: `python -m lab.benchmarks.echo_server stdio|http`.

It imports little, since its start is part of what is measured.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import uvicorn
from mcp.server.mcpserver import MCPServer

STDIO_ARGUMENTS = ["-m", "lab.benchmarks.echo_server", "stdio"]
"""Arguments of the interpreter that start the server on stdio."""
_START_S = 30.0


def create_server() -> MCPServer:
    """Create a server with one tool, `echo`, which does as little as a tool can."""
    server = MCPServer("bench", log_level="ERROR")

    @server.tool()
    # Not a plain function, which the SDK would run in a thread: in process that would be half of what is measured.
    async def echo(text: str, times: int = 1) -> str:  # pyright: ignore[reportUnusedFunction]
        """Echo."""
        return text * times

    return server


@asynccontextmanager
async def http_server() -> AsyncGenerator[str]:
    """The URL of a server over HTTP, in its own process so that it shares no event loop with the clients."""
    argv = [sys.executable, "-m", "lab.benchmarks.echo_server", "http"]
    async with await anyio.open_process(argv, stderr=None) as process:
        assert process.stdout is not None
        with anyio.fail_after(_START_S):
            port = int(await process.stdout.receive())
        try:
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.terminate()


async def serve_http() -> None:
    """Serve on a free port of the loopback interface, and print the port."""
    running = uvicorn.Server(uvicorn.Config(create_server().streamable_http_app(), port=0, log_level="critical"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(running.serve)
        while not running.started:
            await anyio.lowlevel.checkpoint()
        # Only once it listens, since the process that reads the port connects at once.
        sys.stdout.write(f"{running.servers[0].sockets[0].getsockname()[1]}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1] == "http":
        anyio.run(serve_http)
    else:
        create_server().run("stdio")
