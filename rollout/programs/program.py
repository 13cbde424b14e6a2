"""Programs as agents: `Program` is a command in a directory of its own, `Function` a coroutine in the worker."""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, cast

import anyio
import structlog
import yaml

from mcp_rollout.gateway.config.pydantic_errors import near
from mcp_rollout.gateway.config.user_code import import_function
from mcp_rollout.gateway.config.variables import child_env
from mcp_rollout.gateway.errors import ConfigError, innermost
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.sections import Strategy
from mcp_rollout.rollout.errors import AgentError
from mcp_rollout.rollout.loop.turns import TrajectoryOver
from mcp_rollout.rollout.programs.conversation import MODEL, SMALL
from mcp_rollout.rollout.programs.endpoint import ProgramEndpoint, Route
from mcp_rollout.rollout.programs.process import Limits, run_process
from mcp_rollout.rollout.programs.program_session import ProgramSession
from mcp_rollout.rollout.programs.turns import ProgramTurns
from mcp_rollout.rollout.types import Message

log = structlog.get_logger(__name__)

_PLACE = re.compile(r"\$\{([^}]*)\}")
_PLACES: tuple[str, ...] = (
    *("model.url", "model.root", "model.key", "model.name", "model.small"),
    *("mcp.url", "prompt", "system", "home", "context_tokens"),
)
_MOST_TOLD = 4096
_VERSION_S = 20.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Offered:
    """What a program is given."""

    model_url: str
    """Base address of a model endpoint, as OpenAI's clients take it: it ends in `/v1`."""
    model_key: str
    """What to send as its API key."""
    mcp_url: str
    """The trajectory's world, over streamable HTTP."""
    messages: list[Message]
    """The task's prompt."""
    context_tokens: int
    """Room of the model, for a program that summarises its conversation before it is full."""

    @property
    def prompt(self) -> str:
        """The last message of the task's prompt."""
        return str(self.messages[-1]["content"])


@dataclass
class _Played(ABC):
    events_s: float = field(default=5.0, kw_only=True)
    """Pause between the events that keep a streaming program waiting for an answer."""
    close_timeout_s: float = field(default=4.0, kw_only=True)
    """How long it may go on once its trajectory is over, of which its next request tells it."""
    turns_type: ClassVar[type[ProgramTurns]] = ProgramTurns
    """As `rollout.loop.agent.Reopens`."""

    @property
    @abstractmethod
    def _name(self) -> str: ...

    @abstractmethod
    async def _run(self, route: Route, offered: Offered) -> tuple[str, bool]:
        """How it ended, empty for a success; and whether it was killed, which is no doing of the policy's."""

    def check(self, environment: Environment) -> None:
        """As `rollout.loop.agent.Checks`."""
        if environment.strategy.use is not Strategy.CHAIN:
            problem = f"{self._name} plays chains only: a program's state can be neither copied nor cut"
            raise ConfigError(problem, file=environment.file, key="strategy.use", remedy="set it to chain")
        if environment.user is not None:
            problem = f"{self._name} answers once, and the environment has a user who replies"
            raise ConfigError(problem, file=environment.file, key="user", remedy="leave it out")

    async def play(self, turns: ProgramTurns) -> None:
        """As `rollout.loop.agent.Agent`."""
        session, ended, has_ended = ProgramSession(turns), list[tuple[str, bool]](), anyio.Event()
        bounds = turns.limits

        async def beside(route: Route) -> None:
            offered = Offered(
                model_url=f"{route.url}/v1",
                model_key=route.key,
                mcp_url=f"{route.url}/mcp",
                messages=turns.messages,
                context_tokens=bounds.context_tokens or (bounds.prompt_tokens or 0) + bounds.response_tokens,
            )
            ended.append(await self._run(route, offered))
            session.end()
            has_ended.set()

        try:
            # The endpoint ends after the program: what the program still asks is answered, by a refusal.
            async with (
                ProgramEndpoint.route(session, events_s=self.events_s) as route,
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(beside, route)
                try:
                    await session.serve(tasks)
                except TrajectoryOver:
                    # Its requests are refused now, with which most programs end by themselves.
                    with anyio.move_on_after(self.close_timeout_s / 2):
                        await has_ended.wait()
                    raise
        finally:
            session.close()
        ((problem, is_killed),) = ended
        refused = f"; its last request was refused: {session.refused}" if session.refused else ""
        if not turns.taken:
            raise AgentError(f"{problem or f'{self._name} ended'}, without a turn{refused}")
        if is_killed:
            raise AgentError(problem)
        if problem:  # perhaps of the policy's making: a library raises at the name of a tool that it does not know
            turns.note_end(problem + refused)


@dataclass
class Function(_Played):
    """Plays by a coroutine function, `async def run(offered: Offered, **arguments)`.

    It uses the addresses as any program would, and returns when the task is done. It is cancelled at the end of the
    trajectory. It shares the worker's event loop, which a wait without `await` blocks.

    Args:
        use: `package.module:function`.
        arguments: Its keyword arguments.
    """

    use: str
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        self._function: Any = import_function(self.use, key="agent.with.use")
        if not inspect.iscoroutinefunction(self._function):
            raise ValueError(f"{self.use} is not a coroutine function: write `async def`")

    @property
    def _name(self) -> str:
        return self.use

    async def _run(self, route: Route, offered: Offered) -> tuple[str, bool]:
        try:
            await self._function(offered, **self.arguments)
        except Exception as error:  # boundary: code of others, which also raises what the policy's mistakes cause
            log.warning("program.raised", function=self.use, exc_info=error)
            cause = innermost(error)
            return f"{self.use} raised {type(cause).__name__}: {cause}"[:_MOST_TOLD], False
        return "", False


@dataclass
class Program(_Played):
    """Plays by a program that speaks to a model endpoint and an MCP server.

    `command`, `files` and `env` may have placeholders: `${model.url}` (it ends in `/v1`), `${model.root}`
    (without it), `${model.key}`, `${model.name}`, `${model.small}` (for what it asks beside the conversation),
    `${mcp.url}`, `${prompt}`, `${system}`, `${home}`, `${context_tokens}`.

    Args:
        preset: `codex` or `claude_code`, which the other arguments extend.
        command: The program and its arguments; with a preset, in place of the preset's.
        files: Text by path in the program's directory, which is its HOME and where it starts.
        env: Environment variables beside the few that servers get, too.
        frozen: By regular expression, the text that the policy reads in its place: for what a program writes into its
            prompts by itself, such as the date, so that siblings have the same prompt. Requests are searched as JSON.
        max_memory_mb: Of each of its processes, as of a server's.
        max_cpu_s: Likewise.
        max_processes: At a time; more end the program, which is scored.
        version_command: Prints the version that run records name; by default the program with `--version`.
    """

    preset: str | None = None
    command: list[str] = field(default_factory=list[str])
    files: dict[str, str] = field(default_factory=dict[str, str])
    env: dict[str, str] = field(default_factory=dict[str, str])
    frozen: dict[str, str] = field(default_factory=dict[str, str])
    max_memory_mb: int | None = None
    max_cpu_s: int | None = None
    max_processes: int = 256
    version_command: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        found: Mapping[str, Any] = {} if self.preset is None else preset(self.preset)
        self.command = self.command or found.get("command", [])
        self.files = {**found.get("files", {}), **self.files}
        self.env = {**found.get("env", {}), **self.env}
        self._frozen = [_compiled(*each) for each in {**found.get("frozen", {}), **self.frozen}.items()]
        if not self.command:
            raise ValueError("names no program: give command or preset")
        for text in (*self.command, *self.files.values(), *self.env.values()):
            for name in _PLACE.findall(text):
                if name not in _PLACES:
                    raise ValueError(f"has ${{{name}}}, which is none of {', '.join(_PLACES)}")
        for name in self.files:
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise ValueError(f"files must be in the program's directory, not {name!r}")

    @property
    def _name(self) -> str:
        return self.command[0]

    def check(self, environment: Environment) -> None:
        """As `rollout.loop.agent.Checks`."""
        super().check(environment)
        if self.preset is None:
            _warn_of_own_tools(self._name)
        if shutil.which(self._name) is None:
            remedy = "install it, or give its path; `make programs` installs those of the presets"
            raise ConfigError(f"no program {self._name!r}", file=environment.file, key="agent.with", remedy=remedy)

    def version(self) -> str:
        """As `rollout.loop.agent.Versioned`."""
        command = self.version_command or [self._name, "--version"]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_VERSION_S, check=False, env=child_env({}))
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{self._name}: unknown, {error}"
        said = done.stdout.decode(errors="replace").strip().splitlines()
        return f"{self._name}: {said[0][:200] if said else f'unknown, status {done.returncode}'}"

    async def _run(self, route: Route, offered: Offered) -> tuple[str, bool]:
        system = [str(message["content"]) for message in offered.messages if message["role"] == "system"]
        async with route.homes.home() as (home, mark):
            route.home, route.frozen = str(home), self._frozen
            model = (offered.model_url, route.url, offered.model_key, MODEL, SMALL)
            own = (offered.mcp_url, offered.prompt, "\n\n".join(system), str(home), str(offered.context_tokens))
            values: Mapping[str, str] = dict(zip(_PLACES, (*model, *own), strict=True))

            def filled(text: str) -> str:
                return _PLACE.sub(lambda found: values[found[1]], text)

            return await run_process(
                [filled(part) for part in self.command],
                home,
                mark,
                Limits(self.max_memory_mb, self.max_cpu_s, self.max_processes, self.close_timeout_s / 2),
                files={name: filled(text) for name, text in self.files.items()},
                env={name: filled(text) for name, text in self.env.items()},
            )


def _compiled(pattern: str, text: str) -> tuple[re.Pattern[bytes], bytes]:
    try:
        return re.compile(pattern.encode()), text.encode()
    except re.error as error:
        raise ValueError(f"frozen has {pattern!r}, which is no regular expression: {error}") from error


@cache
def _warn_of_own_tools(name: str) -> None:
    log.warning("program.own_tools", command=name, remedy="switch its own tools off, or let the command isolate it")


@cache
def preset(name: str) -> Mapping[str, Any]:
    """A preset of this package. Raises ValueError if there is none of this name."""
    found = {file.stem: file for file in Path(__file__).with_name("presets").glob("*.yaml")}
    if name not in found:
        raise ValueError(f"there is no preset {name!r}: {near(name, found, 'presets')}")
    return cast("Mapping[str, Any]", yaml.safe_load(found[name].read_text()))
