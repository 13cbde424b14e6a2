"""The `Agent` protocol, and how an environment's agent is found and built."""

from __future__ import annotations

import inspect
from dataclasses import is_dataclass
from functools import cache
from typing import Any, Protocol, cast, runtime_checkable

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from mcp_rollout.gateway.config.pydantic_errors import near
from mcp_rollout.gateway.config.user_code import import_user_module
from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.sections import AgentConfig
from mcp_rollout.rollout.loop.turns import Turns


class Agent(Protocol):
    """Takes the turns of one trajectory. An instance is built for each trajectory, and `play` is called once.

    Write it as a dataclass: its fields are the arguments in the environment's file, and their types are validated.
    """

    async def play(self, turns: Turns) -> None:
        """Take turns until the trajectory ends, or return to end it.

        Every method of `turns` raises `TrajectoryOver` at the end; let it pass. Any other exception of the agent
        withdraws the trajectory as `agent_error`.
        """
        ...


@runtime_checkable
class Versioned(Protocol):
    """An agent of software that the package does not come with."""

    def version(self) -> str:
        """What run records name it by; may start a program."""
        ...


@runtime_checkable
class Reopens(Protocol):
    """An agent that may begin further segments: it passes on a conversation which a program leads."""

    turns_type: type[Turns]
    """What it is given."""


def agent_settings(environment: Environment) -> dict[str, str]:
    """What a run record says of the environment's agent. May start a program: not for an event loop."""
    agent: object = build_agent(environment)
    return {"program": agent.version()} if isinstance(agent, Versioned) else {}


@runtime_checkable
class Checks(Protocol):
    """An agent that cannot play every environment."""

    def check(self, environment: Environment) -> None:
        """Raises ConfigError where it cannot play this one. Called for each trajectory, and before any."""
        ...


def build_agent(environment: Environment) -> Agent | None:
    """Import the environment's agent and make an instance for one trajectory; None if it names none.

    Raises:
        ConfigError: there is no such class, it is not an agent, or it does not take these arguments.
    """
    config, file = environment.agent, environment.file
    if config is None:
        return None
    kind = _find(config, file)
    fields = inspect.signature(kind)
    try:
        fields.bind(**config.arguments)
    except TypeError as error:
        remedy = f"it takes {', '.join(fields.parameters) or 'no arguments'}"
        raise ConfigError(f"{config.use}: {error}", file=file, key="agent.with", remedy=remedy) from error
    try:
        # A dataclass is built with its fields' types validated.
        agent = _adapter(kind).validate_python(config.arguments) if is_dataclass(kind) else kind(**config.arguments)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        key = ".".join(["agent.with", *map(str, fault["loc"])])
        raise ConfigError(f"{config.use}: {fault['msg']}", file=file, key=key, remedy="correct the value") from error
    except PydanticUserError as error:
        problem = f"{config.use} is a dataclass with a field that cannot be validated: {error}"
        raise ConfigError(problem, file=file, key="agent.use", remedy="annotate its fields with plain types") from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{config.use}: {error}", file=file, key="agent.with", remedy="correct it") from error
    checks: object = agent
    if isinstance(checks, Checks):
        checks.check(environment)
    return agent


def _find(config: AgentConfig, file: str) -> Any:
    module_name, _, name = config.use.partition(":")
    module = import_user_module(module_name, key="agent.use", file=file)
    kind = getattr(module, name, None)
    if kind is None:
        classes = [each for each, found in vars(module).items() if _is_agent(found) and found is not Agent]
        remedy = near(name, classes, f"agents in {module.__name__}") if classes else "it defines no agent"
        raise ConfigError(f"{module.__name__} has no {name!r}", file=file, key="agent.use", remedy=remedy)
    if not _is_agent(kind):
        remedy = "give it `async def play(self, turns)`"
        raise ConfigError(f"{config.use} is not a class of agents", file=file, key="agent.use", remedy=remedy)
    return kind


def _is_agent(kind: object) -> bool:
    return isinstance(kind, type) and inspect.iscoroutinefunction(getattr(cast("Any", kind), "play", None))


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
