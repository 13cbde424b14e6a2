"""Remedies for a server that does not start."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from gateway.config.models import ServerConfig
from gateway.errors import ConnectTimeout, GatewayError, ServerUnavailable, StartFault

_INSTALLS = {
    **dict.fromkeys(("npx", "npm", "node"), "install Node.js"),
    **dict.fromkeys(("uvx", "uv"), "install uv"),
    "docker": "install docker",
}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.problem} ({self.remedy})"


def diagnose(error: GatewayError, entry: ServerConfig) -> Diagnosis:
    """Explain a failed start, and name the fields of the server's entry that may have to change."""
    fault = _fault(error)
    if entry.command is None:
        return Diagnosis(error.problem, _of_address(fault) if entry.url is not None else "correct the factory")
    if fault is StartFault.NO_PROGRAM:
        return _no_program(entry.command, entry.cwd, error.problem)
    if fault is StartFault.NOT_MCP:
        problem = f"{entry.label!r} is no MCP server: it does not know `initialize`"
        return Diagnosis(problem, "name the program that serves; with docker, ssh and the like look at args")
    if entry.max_memory_mb is not None:
        remedy = f"it may need more than max_memory_mb: {entry.max_memory_mb}; try it without"
        if isinstance(error, ConnectTimeout):
            remedy += " (node and others hang where they get too little)"
    elif isinstance(error, ConnectTimeout):
        remedy = "start it by hand: a server waits for input; others need other args or env, or more start_timeout_s"
    else:
        remedy = "start it by hand to see why; its entry may need other args or env"
    return Diagnosis(error.problem, remedy)


def _fault(error: BaseException) -> StartFault | None:
    """The fault of the error, or of the error that it was raised from: sessions share a failed start."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ServerUnavailable) and cause.fault is not None:
            return cause.fault
        cause = cause.__cause__
    return None


def _of_address(fault: StartFault | None) -> str:
    match fault:
        case StartFault.UNREACHABLE:
            return "nothing answers there: start the server, or correct url"
        case StartFault.UNAUTHORIZED:
            return "give it a token: headers, or client_credentials"
        case _:
            return "check url, headers and type"


def _no_program(command: str, cwd: str | None, problem: str) -> Diagnosis:
    path = Path(cwd or ".") / Path(command).expanduser()
    if path.is_dir() and os.sep in command:
        return Diagnosis(f"cannot start {command!r}: it is a directory", "name the program in it")
    if path.is_file() and os.sep in command:
        remedy = "chmod +x, or write its interpreter as command and the file into args"
        return Diagnosis(f"cannot start {command!r}: it is not executable", remedy)
    program, *more = command.split()
    if more:
        # Only the program is shown: the arguments may hold a secret.
        problem = f"cannot start {program!r}: command holds its arguments, too"
        return Diagnosis(problem, f'write "command": "{program}", "args": ["...", "..."]')
    if command.startswith("~"):
        return Diagnosis(problem, "write ${HOME} for ~, which only shells expand")
    return Diagnosis(problem, f"{_INSTALLS.get(Path(command).name, 'install it')}, or write its whole path")
