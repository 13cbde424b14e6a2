"""A server that does not come up: what its user can do about it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from gateway.config.models import ServerConfig
from gateway.errors import ConnectTimeout, GatewayError

_INSTALLS = {
    **dict.fromkeys(("npx", "npm", "node"), "install Node.js"),
    **dict.fromkeys(("uvx", "uv"), "install uv"),
    "docker": "install docker",
}
_HANDSHAKE = "; check the command by hand, or raise start_timeout_s"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.problem} ({self.remedy})"


def diagnose(error: GatewayError, entry: ServerConfig) -> Diagnosis:
    """What a failed start comes to, in the words of the entry that is to be changed."""
    problem = str(error).removeprefix(f"{error.server}: ").removesuffix(_HANDSHAKE)
    if entry.command is None:
        return Diagnosis(problem, _of_address(problem) if entry.url is not None else "correct the factory")
    if "no such program" in problem:
        return _no_program(entry.command, entry.cwd, problem)
    if any("Method not found" in str(cause) for cause in _causes(error)):
        said = f"{entry.label!r} is no MCP server: it does not know `initialize`"
        return Diagnosis(said, "name the program that serves; with docker, ssh and the like look at args")
    if entry.max_memory_mb is not None:
        remedy = f"it may need more than max_memory_mb: {entry.max_memory_mb}; try it without"
        if isinstance(error, ConnectTimeout):
            remedy += " (node and others hang where they get too little)"
    elif isinstance(error, ConnectTimeout):
        remedy = "start it by hand: a server waits for input; others need other args or env, or more start_timeout_s"
    else:
        remedy = "start it by hand to see why; its entry may need other args or env"
    return Diagnosis(problem, remedy)


def _of_address(problem: str) -> str:
    if "ConnectError" in problem:
        return "nothing answers there: start the server, or correct url"
    if any(status in problem for status in ("401", "403")):
        return "give it a token: headers, or client_credentials"
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
        # Not the rest of it, which may hold a secret.
        said = f"cannot start {program!r}: its arguments stand in command"
        return Diagnosis(said, f'write "command": "{program}", "args": ["...", "..."]')
    if command.startswith("~"):
        return Diagnosis(problem, "write ${HOME} for ~, which only shells know")
    return Diagnosis(problem, f"{_INSTALLS.get(Path(command).name, 'install it')}, or write its whole path")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Everything that an error came from."""
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions:
                yield from _causes(inner)
        error = error.__cause__
