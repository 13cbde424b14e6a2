"""`python -m mcp_servers.X`: stdio, or streamable HTTP with `--http HOST:PORT`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from mcp.server.mcpserver import MCPServer


def parser(program: str, description: str) -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog=f"python -m {program}", description=description)
    result.add_argument(
        "--http", type=_address, metavar="HOST:PORT", help="serve streamable HTTP at /mcp; default: stdio"
    )
    return result


def serve(server: MCPServer, http: tuple[str, int] | None) -> None:
    """Serves until standard input ends (stdio) or the process is told to stop (HTTP)."""
    if http is None:
        server.run("stdio")
    else:
        server.run("streamable-http", host=http[0], port=http[1])


def main(server: MCPServer, program: str, description: str, arguments: Sequence[str] | None = None) -> None:
    serve(server, parser(program, description).parse_args(arguments).http)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, for example 127.0.0.1:8000")
    return host, int(port)
