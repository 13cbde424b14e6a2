"""`Program`: a command, in a directory of its own, as a trajectory's agent."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files as package_files
from pathlib import PurePosixPath
from typing import Any, cast

import yaml

from gateway.config.pydantic_errors import near
from gateway.errors import ConfigError
from rollout.environment.config import Environment
from rollout.errors import AgentError
from rollout.loop.turns import Turns
from rollout.programs.face import MODEL, SMALL, Addresses
from rollout.programs.played import Ended, check_chain, context_tokens, play_program
from rollout.programs.process import Homes, run_process

_PLACE = re.compile(r"\$\{([^}]*)\}")
_PLACES = (
    *("model.url", "model.root", "model.key", "model.name", "model.small", "mcp.url"),
    *("prompt", "system", "home", "context_tokens"),
)


@dataclass
class Program:
    """Plays by a program that speaks to a model endpoint and an MCP server.

    `command`, `files`, `env` and `stdin` may have placeholders: `${model.url}` (it ends in `/v1`), `${model.root}`
    (without it), `${model.key}`, `${model.name}`, `${model.small}`, `${mcp.url}`, `${prompt}`, `${system}`, `${home}`,
    `${context_tokens}`.

    Args:
        preset: Name of a preset, which the other arguments extend: `codex`, `claude_code`.
        command: The program and its arguments; with a preset, in place of the preset's.
        files: Text by path in the program's directory.
        env: Environment variables beside the few that servers get, too.
        stdin: What it reads on its standard input.
        max_memory_mb: Of each of its processes, as of a server's.
        max_cpu_s: Likewise.
        events_s: Pause between the events that keep it waiting for an answer.
        close_timeout_s: How long it may go on once its trajectory is over: half of it by itself, half after SIGTERM.
    """

    preset: str | None = None
    command: list[str] = field(default_factory=list[str])
    files: dict[str, str] = field(default_factory=dict[str, str])
    env: dict[str, str] = field(default_factory=dict[str, str])
    stdin: str = ""
    max_memory_mb: int | None = None
    max_cpu_s: int | None = None
    events_s: float = 5.0
    close_timeout_s: float = 4.0

    def __post_init__(self) -> None:
        if self.preset is not None:
            found = preset(self.preset)
            self.command = self.command or found["command"]
            self.files = {**found.get("files", {}), **self.files}
            self.env = {**found.get("env", {}), **self.env}
        if not self.command:
            raise ValueError("names no program: give command or preset")
        for text in (*self.command, *self.files.values(), *self.env.values(), self.stdin):
            for name in _PLACE.findall(text):
                if name not in _PLACES:
                    raise ValueError(f"has ${{{name}}}, which is none of {', '.join(_PLACES)}")
        for name in self.files:
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise ValueError(f"files must be in the program's directory, not {name!r}")

    def check(self, environment: Environment) -> None:
        """As `rollout.loop.agent.Checks`."""
        check_chain(environment, self.command[0])
        if "${" not in self.command[0] and shutil.which(self.command[0]) is None:
            remedy = "install it, or give its path; `make programs` installs those of the presets"
            raise ConfigError(f"no program {self.command[0]!r}", file=environment.file, key="agent.with", remedy=remedy)

    async def play(self, turns: Turns) -> None:
        async def run(addresses: Addresses, homes: Homes) -> Ended:
            async with homes.home() as home:
                values = _values(turns, addresses, home.path)

                def filled(text: str) -> str:
                    return _PLACE.sub(lambda found: values[found[1]], text)

                ended = await run_process(
                    [filled(part) for part in self.command],
                    home,
                    files={name: filled(text) for name, text in self.files.items()},
                    env={name: filled(text) for name, text in self.env.items()},
                    stdin=filled(self.stdin),
                    max_memory_mb=self.max_memory_mb,
                    max_cpu_s=self.max_cpu_s,
                    close_s=self.close_timeout_s / 2,
                )
            if ended.status:
                return Ended(str(ended), is_killed=ended.is_killed)
            return Ended("" if turns.taken else str(ended))

        await play_program(turns, run, events_s=self.events_s, close_s=self.close_timeout_s / 2)


def _values(turns: Turns, addresses: Addresses, home: str) -> Mapping[str, str]:
    messages = turns.messages
    if not messages or messages[-1]["role"] != "user":
        raise AgentError("a program needs a task whose prompt ends in a user's message")
    system = [str(message["content"]) for message in messages if message["role"] == "system"]
    return {
        "model.url": addresses.model_url,
        "model.root": addresses.model_url.removesuffix("/v1"),
        "model.key": addresses.model_key,
        "model.name": MODEL,
        "model.small": SMALL,
        "mcp.url": addresses.mcp_url,
        "prompt": str(messages[-1]["content"]),
        "system": "\n\n".join(system),
        "home": home,
        "context_tokens": str(context_tokens(turns.limits)),
    }


@cache
def preset(name: str) -> Mapping[str, Any]:
    """A preset of this package. Raises ValueError if there is none of this name."""
    directory = package_files("rollout.programs") / "presets"
    known = sorted(each.name.removesuffix(".yaml") for each in directory.iterdir() if each.name.endswith(".yaml"))
    if name not in known:
        raise ValueError(f"there is no preset {name!r}: {near(name, known, 'presets')}")
    return cast("Mapping[str, Any]", yaml.safe_load((directory / f"{name}.yaml").read_text()))
