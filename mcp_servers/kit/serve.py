"""`python -m mcp_servers.X`: stdio, or streamable HTTP with `--http HOST:PORT`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from mcp.server.mcpserver import MCPServer


def parser(program: str | None, description: str) -> argparse.ArgumentParser:
    """A parser that knows `--http`."""
    prog = f"python -m {program}" if program else None
    result = argparse.ArgumentParser(prog=prog, description=description)
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


def main(
    server: MCPServer, program: str | None = None, description: str = "", arguments: Sequence[str] | None = None
) -> None:
    """The whole command line of a server without options of its own.

    Args:
        program: The module's name; None for a server that is a file, whose name is then that of the script.
    """
    serve(server, parser(program, description).parse_args(arguments).http)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, for example 127.0.0.1:8000")
    return host, int(port)
