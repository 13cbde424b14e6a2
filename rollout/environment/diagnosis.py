"""Diagnose a server that did not start: the problem and its remedy."""

from __future__ import annotations

import os
import re
from pathlib import Path

from mcp_rollout.gateway.config.models import ServerConfig
from mcp_rollout.gateway.errors import (
    ConfigError,
    ConnectTimeout,
    GatewayError,
    NotAnMCPServer,
    NothingListens,
    ProgramNotFound,
    ServesWorlds,
    Unauthorized,
)

_WANTS_MCP_1 = re.compile(
    r"No module named '?mcp\.(server\.fastmcp|types|shared)|cannot import name '\w+' from '?mcp\b|"
    r"module 'mcp[\w.]*' has no attribute|'(Server|FastMCP|MCPServer)' object has no attribute"
)
"""What a server says that was built for mcp 1 and finds mcp 2, in Python's words."""
_HOME = "write ${HOME} for ~, which only shells expand"
_INSTALLS = {
    **dict.fromkeys(("npx", "npm", "node"), "install Node.js"),
    **dict.fromkeys(("uvx", "uv"), "install uv"),
    "docker": "install docker",
}


def diagnose(error: GatewayError, entry: ServerConfig, *, file: str | Path = "", key: str = "") -> ConfigError:
    """Turn a failed start into an error about the server's entry, with a remedy.

    Args:
        error: why the server did not start.
        entry: its configuration.
        file: the file that holds the entry.
        key: the entry's key in `file`.
    """
    if entry.command is None:
        problem, remedy = error.problem, _of_address(error) if entry.url is not None else "correct the factory"
    elif isinstance(error, ProgramNotFound):
        problem, remedy = _no_program(entry.command, entry.cwd, error.problem)
    elif isinstance(error, NotAnMCPServer):
        problem = f"{entry.label!r} is not an MCP server: it does not know `initialize`"
        remedy = "name the program that serves; with docker, ssh and the like look at args"
    else:
        problem, remedy = error.problem, _of_process(error, entry)
    return ConfigError(problem, file=file, key=key, remedy=remedy)


def _of_address(error: GatewayError) -> str:
    if isinstance(error, NothingListens):
        return "nothing answers there: start the server, or correct url"
    if isinstance(error, Unauthorized):
        return "give it a token in headers"
    if isinstance(error, ServesWorlds):
        return "run this there, on the file that it serves"
    return "check url, headers and type"


def _of_process(error: GatewayError, entry: ServerConfig) -> str:
    if any(re.search("(?:^|=)~(?:/|$)", text) for text in (entry.cwd or "", *entry.args)):
        return _HOME
    if _WANTS_MCP_1.search(error.problem):
        if Path(entry.command or "").name == "uvx":
            return "it was built for mcp 1: add --with 'mcp<2' to its args"
        return "it was built for mcp 1 and its environment has mcp 2: pip install 'mcp<2' there"
    is_late = isinstance(error, ConnectTimeout)
    if entry.max_memory_mb is not None:
        hangs = " (node and others hang when they get too little)" if is_late else ""
        return f"it may need more than max_memory_mb: {entry.max_memory_mb}; try it without{hangs}"
    if is_late:
        return "start it by hand: a server waits for input; others need other args or env, or more start_timeout_s"
    return "start it by hand to see why; its entry may need other args or env"


def _no_program(command: str, cwd: str | None, problem: str) -> tuple[str, str]:
    """Problem and remedy of a command that does not name an executable program."""
    path = Path(cwd or ".") / Path(command).expanduser()
    if path.is_dir() and os.sep in command:
        return f"cannot start {command!r}: it is a directory", "name the program in it"
    if path.is_file() and os.sep in command:
        remedy = "chmod +x, or write its interpreter as command and the file into args"
        return f"cannot start {command!r}: it is not executable", remedy
    program, *arguments = command.split()
    if arguments:
        # The arguments are not quoted: they may hold a secret.
        return f"cannot start {program!r}: its arguments are in command", (
            f'write "command": "{program}", "args": ["...", "..."]'
        )
    if command.startswith("~"):
        return problem, _HOME
    return problem, f"{_INSTALLS.get(Path(command).name, 'install it')}, or write its whole path"
