"""The command line of `python -m mcp_rollout.mcp_servers.X`: stdio, or streamable HTTP with `--http HOST:PORT`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import anyio
from mcp.server.mcpserver import MCPServer

from mcp_rollout.mcp_servers.kit.direct.calls import DirectCalls
from mcp_rollout.mcp_servers.kit.direct.http import TOKEN, Admission, serve_http
from mcp_rollout.mcp_servers.kit.direct.lines import serve_stdio
from mcp_rollout.mcp_servers.kit.direct.pipes import standard_streams_are_pipes
from mcp_rollout.mcp_servers.kit.process import plain_tracebacks, raise_open_files, tune_collector


def parser(program: str | None, description: str) -> argparse.ArgumentParser:
    """A parser with the option `--http`.

    Args:
        program: The module's name for the help; None for a server that is a file, which uses the script's name.
    """
    prog = f"python -m {program}" if program else None
    result = argparse.ArgumentParser(prog=prog, description=description)
    result.add_argument(
        "--http",
        type=address,
        metavar="HOST:PORT",
        help=f"serve streamable HTTP at /mcp; default: stdio. Clients need the token in {TOKEN}, without which only "
        "loopback addresses are served",
    )
    return result


def serve(server: MCPServer, http: tuple[str, int] | None) -> None:
    """Serves until standard input ends (stdio) or the process receives a signal (HTTP).

    Tool calls take a direct path where the SDK would answer the same; all else is served by the SDK.
    """
    plain_tracebacks()
    # Once all modules are imported and the tools are registered: what exists now lasts as long as the process.
    tune_collector()
    calls = DirectCalls.of(server)
    if http is None:
        if calls is None or not standard_streams_are_pipes():
            server.run("stdio")
        else:
            anyio.run(serve_stdio, server, calls)
        return
    raise_open_files()
    anyio.run(serve_http, server, calls, admission(server, http[0]), *http)


def admission(server: MCPServer, host: str) -> Admission:
    """Who may use the server at this address; ends the program if other machines reach it and there is no token."""
    try:
        return Admission(host, os.environ, authorizes=server.settings.auth is not None)
    except ValueError as error:
        sys.stderr.write(f"error: --http: {error}\n")
        raise SystemExit(2) from None


def main(
    server: MCPServer, program: str | None = None, description: str = "", arguments: Sequence[str] | None = None
) -> None:
    """Runs the command line of a server without further options; arguments as in `parser`."""
    serve(server, parser(program, description).parse_args(arguments).http)


def address(text: str) -> tuple[str, int]:
    """Parses HOST:PORT; an argparse type."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, for example 127.0.0.1:8000")
    return host, int(port)
