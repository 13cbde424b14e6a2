"""An environment, read from its YAML file: servers, user simulator, reward, limits, thinking, filters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self, cast

from pydantic import Field, field_validator, model_validator

from gateway.config.mapping_file import read_mapping
from gateway.config.models import GatewayConfig, ServerConfig
from gateway.config.pydantic_errors import near
from gateway.config.servers_file import no_servers, read_entries, validate_around
from gateway.errors import ConfigError, Faults, InvalidValue, InvalidValues, faults_of, one_error
from rollout.environment.hosts_config import HostsConfig
from rollout.environment.reward_config import CUSTOM_PART, Component, RewardConfig
from rollout.environment.sections import (
    AgentConfig,
    FilterAction,
    FiltersConfig,
    LimitsConfig,
    ResultsConfig,
    Section,
    Strategy,
    StrategyConfig,
    ThinkingConfig,
)

DEFAULT_ASSISTANT_TURNS = 15
INCLUDED_CONFIGS = Path(__file__).parents[1] / "configs"
"""The environments, recipes and base configuration of this package: `configs/` of a checkout, copied into wheels."""
DEFAULT_DIRECTORIES = (Path("configs/environments"), INCLUDED_CONFIGS / "environments")


class PromptReference(Section):
    """A prompt of a server, with its arguments."""

    server: str
    """The server's name."""
    name: str
    """The prompt's name."""
    arguments: dict[str, str] = Field(default_factory=dict)
    """Passed to the prompt."""


class ResourceReference(Section):
    """A resource of a server."""

    server: str
    """The server's name."""
    uri: str
    """The address of the resource."""


class SystemPart(Section):
    """One part of the system message: a text, or something that a server provides."""

    text: str | None = None
    """A text, as it is."""
    instructions_of: str | None = None
    """A server, whose instructions are taken."""
    prompt: PromptReference | None = None
    """A prompt of a server."""
    resource: ResourceReference | None = None
    """A resource of a server."""

    @model_validator(mode="after")
    def _one_source(self) -> SystemPart:
        if len(self.model_dump(exclude_none=True)) != 1:
            raise ValueError("give one of text, instructions_of, prompt and resource; for more make it a list")
        return self

    @property
    def server(self) -> str | None:
        """The server that provides it; None for a text."""
        found = self.prompt or self.resource
        return found.server if found else self.instructions_of


class ServerReference(Section):
    """One of the environment's servers, by name."""

    server: str
    """The server's name."""


class TasksConfig(ServerReference):
    """The server of the tasks, and what its expert earns."""

    expert_reward: float = 1.0
    """The least score of the expert's scripts, for environments in which 1 cannot be had; `check-env` demands it."""


class Environment(GatewayConfig):
    """Everything a trajectory needs besides a policy, under one name; also the configuration of its gateway."""

    name: str
    """The file's name by default."""
    hosts: HostsConfig | None = None
    """Where its worlds are, if not here."""
    file: str = ""
    """The file it was read from, for messages."""
    description: str = ""
    """For people."""
    servers: dict[str, ServerConfig] = Field(min_length=1)
    system: tuple[SystemPart, ...] = ()
    """Parts of the system message that rows begin with, joined by blank lines. A single part needs no list, and a text
    no key."""
    user: ServerReference | None = None
    """The server that simulates the user (roles `start` and `reply`)."""
    reward: RewardConfig = RewardConfig()
    tasks: TasksConfig | None = None
    """The server that lists the tasks and the expert's scripts (roles `tasks` and `expert`)."""
    limits: LimitsConfig = LimitsConfig()
    results: ResultsConfig = ResultsConfig()
    thinking: ThinkingConfig = ThinkingConfig()
    filters: FiltersConfig = FiltersConfig()
    strategy: StrategyConfig = StrategyConfig()
    agent: AgentConfig | None = None
    """What takes the turns; None for the built-in `rollout.loop.trajectory.ToolAgent`."""

    @property
    def is_rewarded(self) -> bool:
        """Whether the environment declares anything that can give a trajectory another reward than 0.

        A user's replies may have rewards. They count here where `weights` names `turns`, since most have none.
        """
        reward = self.reward
        names = [*reward.computed, *reward.own_components, CUSTOM_PART]
        names += (Component.SCORE, *reward.parts) if reward.server else ()
        rewards_turns = any(server.trusted for server in self.servers.values())
        rewards_turns |= self.user is not None and Component.TURNS in reward.weights
        names += [Component.TURNS] if rewards_turns else []
        penalises = any(each.action is FilterAction.PENALISE for _, each in self.filters)
        return penalises or any(reward.weight(name) for name in names)

    @property
    def has_user_messages(self) -> bool:
        """Whether a user message can follow the policy's: from the user, or from an agent."""
        return self.user is not None or self.agent is not None

    @property
    def as_chain(self) -> Environment:
        """The environment with the strategy `chain`."""
        if self.strategy.use is Strategy.CHAIN:
            return self
        return self.model_copy(update={"strategy": self.strategy.model_copy(update={"use": Strategy.CHAIN})})

    @field_validator("agent", "strategy", mode="before")
    @classmethod
    def _accept_a_plain_name(cls, value: Any) -> Any:
        return {"use": value} if isinstance(value, str) else value

    @field_validator("system", mode="before")
    @classmethod
    def _accept_a_single_part(cls, value: Any) -> Any:
        if value is None:
            return ()
        parts = cast("list[Any]", value if isinstance(value, list) else [value])
        return [{"text": part} if isinstance(part, str) else part for part in parts]

    @model_validator(mode="after")
    def _references_exist(self) -> Self:
        references = {
            **{f"system.{index}": part.server for index, part in enumerate(self.system)},
            "user.server": self.user.server if self.user else None,
            "reward.server": self.reward.server,
            "tasks.server": self.tasks.server if self.tasks else None,
        }
        if faults := [
            InvalidValue(
                f"{key} names {server!r}, which is not one of the servers", near(server, self.servers, "servers")
            )
            for key, server in references.items()
            if server is not None and server not in self.servers
        ]:
            raise InvalidValues(faults)
        return self


def load_environment(name: str | Path, directory: str | Path | None = None) -> Environment:
    """Read an environment: the YAML file `name`, or the environment of that name (see `environment_file`).

    Raises:
        ConfigError: there is no such environment, or its file is invalid; the message names file, key and remedy.
    """
    is_path = str(name).endswith((".yaml", ".yml"))
    path = Path(name) if is_path else environment_file(str(name), directory)
    if not path.is_file():
        raise ConfigError("no such file", file=path, remedy="correct the path")
    raw = read_mapping(path)
    if "servers" not in raw:
        raise no_servers(raw, path, key="servers", expected="expected servers: {NAME: {command: ...}}")
    entries = read_entries(_required_by_default(raw.pop("servers")), file=path)
    faults = Faults([each for fault in entries.faults.values() for each in faults_of(fault)])
    with faults.collected():
        found = validate_around(Environment, {"name": path.stem, **raw, "file": str(path)}, entries, file=path)
        if not faults:
            return found
    raise one_error(faults)


def environment_file(name: str, directory: str | Path | None = None) -> Path:
    """The file of the environment `name`.

    Args:
        name: without suffix.
        directory: where to look for `{name}.yaml` or `{name}/{name}.yaml`; None looks in `configs/environments` of the
            working directory, then among the included environments.

    Raises:
        ConfigError: there is none of this name.
    """
    directories = DEFAULT_DIRECTORIES if directory is None else (Path(directory),)
    for path in (each / place for each in directories for place in (f"{name}.yaml", f"{name}/{name}.yaml")):
        if path.is_file():
            return path
    places = " or ".join(map(str, directories))
    known = sorted({found for each in directories for found in environment_names(each)})
    remedy = near(name, known, f"environments in {places}") if known else f"{places} has none"
    raise ConfigError(f"unknown environment {name!r}", file=directories[0] / f"{name}.yaml", remedy=remedy)


def _required_by_default(servers: Any) -> Any:
    """Set `required: true` on each entry without it: an environment must not run without one of its servers."""
    if not isinstance(servers, dict):
        return servers
    entries = cast("dict[str, Any]", servers)
    return {
        name: {"required": True, **cast("dict[str, Any]", entry)} if isinstance(entry, dict) else entry
        for name, entry in entries.items()
    }


def environment_names(directory: str | Path) -> Sequence[str]:
    """Names of the environments in a directory, sorted; in one of its own it is `NAME/NAME.yaml`."""
    own = [path for path in Path(directory).glob("*/*.yaml") if path.stem == path.parent.name]
    return sorted({path.stem for path in (*Path(directory).glob("*.yaml"), *own)})
