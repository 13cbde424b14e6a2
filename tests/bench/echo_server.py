"""The server that the benchmarks call: `python echo_server.py stdio|http`; over HTTP it prints its port."""

import sys

import anyio
import uvicorn
from mcp.server.mcpserver import MCPServer


def create_server() -> MCPServer:
    server = MCPServer("bench", log_level="ERROR")

    @server.tool()
    def echo(text: str, times: int = 1) -> str:
        """Echo."""
        return text * times

    return server


async def serve_http() -> None:
    running = uvicorn.Server(uvicorn.Config(create_server().streamable_http_app(), port=0, log_level="critical"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(running.serve)
        while not running.started:
            await anyio.lowlevel.checkpoint()
        print(running.servers[0].sockets[0].getsockname()[1], flush=True)  # noqa: T201


if __name__ == "__main__":
    if sys.argv[1] == "http":
        anyio.run(serve_http)
    else:
        create_server().run("stdio")
