"""An environment, read from its YAML file: servers, user simulator, reward, limits, thinking, filters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, cast

from pydantic import Field, field_validator, model_validator

from mcp_rollout.gateway.config.mapping_file import JSON_SUFFIXES, read_mapping
from mcp_rollout.gateway.config.models import GatewayConfig, ServerConfig
from mcp_rollout.gateway.config.pydantic_errors import near, validate
from mcp_rollout.gateway.config.servers_file import (
    load_servers,
    no_servers,
    read_entries,
    read_servers,
    validate_around,
)
from mcp_rollout.gateway.errors import ConfigError, Faults, InvalidValue, InvalidValues, faults_of, one_error
from mcp_rollout.rollout.environment.hosts_config import HostsConfig
from mcp_rollout.rollout.environment.parameters import name_suffix, split_name, with_values
from mcp_rollout.rollout.environment.reward_config import CUSTOM_PART, Component, RewardConfig
from mcp_rollout.rollout.environment.sections import (
    AgentConfig,
    CutRules,
    FilterAction,
    FiltersConfig,
    LimitsConfig,
    Section,
    Strategy,
    StrategyConfig,
    ThinkingConfig,
)

DEFAULT_ASSISTANT_TURNS = 15
SOLVED = RewardConfig(weights={Component.SOLVED: 1.0})
"""The reward of tasks from a file where the environment has none."""
INCLUDED_CONFIGS = Path(__file__).parents[1] / "configs"
"""The environments, recipes and base configuration of this package: `configs/` of a checkout, copied into wheels."""
DEFAULT_DIRECTORIES = (Path("configs/environments"), INCLUDED_CONFIGS / "environments")


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
    resource: ResourceReference | None = None
    """A resource of a server."""

    @model_validator(mode="after")
    def _one_source(self) -> SystemPart:
        if len(self.model_dump(exclude_none=True)) != 1:
            raise ValueError("give one of text, instructions_of and resource; for more make it a list")
        return self

    @property
    def server(self) -> str | None:
        """The server that provides it; None for a text."""
        return self.resource.server if self.resource else self.instructions_of


class ServerReference(Section):
    """One of the environment's servers, by name."""

    server: str
    """The server's name."""


class TasksConfig(Section):
    """Where the tasks come from: a file, or a server, which may also have an expert for the tasks of a file."""

    server: str | None = None
    """The server that lists the tasks, unless a file does, and that plays the expert."""
    file: Path | None = None
    """A file of tasks, `.jsonl` or `.parquet`, beside the environment's file."""
    test_share: float = Field(default=0.2, ge=0, le=1)
    """Of a file: the expected share of its prompts in the split `test`. The content of a prompt decides."""
    expert_reward: float = 1.0
    """The least score of the expert's scripts, for environments in which 1 cannot be had; `check-env` demands it."""

    @model_validator(mode="after")
    def _has_a_source(self) -> Self:
        if self.server is None and self.file is None:
            raise InvalidValue("names neither a server nor a file", "write {file: tasks.jsonl} or {server: NAME}")
        return self


class Environment(GatewayConfig):
    """Everything a trajectory needs besides a policy, under one name; also the configuration of its gateway."""

    name: str
    """The file's name by default. Values of `parameters` follow it, as in `bfcl:category=base`."""
    parameters: dict[str, str] = Field(default_factory=dict)
    """What its name can choose; in the file `{default, choices}` of each, which is used as `${parameters.NAME}`."""
    hosts: HostsConfig | None = None
    """Where its worlds are, if not here."""
    file: str = ""
    """The file it was read from, for messages."""
    description: str = ""
    """For people."""
    servers: dict[str, ServerConfig] = Field(min_length=1)
    """Entries by name; in the file also the name of an `mcpServers` file beside it."""
    system: tuple[SystemPart, ...] = ()
    """Parts of the system message that rows begin with, joined by blank lines. A single part needs no list, and a text
    no key."""
    user: ServerReference | None = None
    """The server that simulates the user (roles `start` and `reply`)."""
    reward: RewardConfig = RewardConfig()
    tasks: TasksConfig | None = None
    """The server that lists the tasks and the expert's scripts (roles `tasks` and `expert`), or a file of tasks."""
    limits: LimitsConfig = LimitsConfig()
    results: CutRules = CutRules()
    thinking: ThinkingConfig = ThinkingConfig()
    filters: FiltersConfig = FiltersConfig()
    strategy: StrategyConfig = StrategyConfig()
    agent: AgentConfig | None = None
    """What takes the turns; None for the built-in `rollout.loop.trajectory.ToolAgent`."""

    @property
    def source(self) -> str:
        """The file with the values of its parameters, for `load_environment`."""
        return self.file + name_suffix(self.parameters)

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
        penalises = any(each.action == FilterAction.PENALISE for _, each in self.filters)
        return penalises or any(reward.weight(name) for name in names)

    @property
    def has_user_messages(self) -> bool:
        """Whether a user message can follow the policy's: from the user, or from an agent."""
        return self.user is not None or self.agent is not None

    def with_tasks(self, file: Path) -> Environment:
        """The environment with its tasks from a file, which are rewarded by `solved` where it has no reward."""
        tasks = TasksConfig(file=file) if self.tasks is None else self.tasks.model_copy(update={"file": file})
        reward = SOLVED if self.reward == RewardConfig() else self.reward
        return self.model_copy(update={"tasks": tasks, "reward": reward})

    @property
    def as_chain(self) -> Environment:
        """The environment with the strategy `chain`, or with `compact`: its trajectories are chains, in segments."""
        if self.strategy.use in (Strategy.CHAIN, Strategy.COMPACT):
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
        parts = cast("list[Any]", value if isinstance(value, list | tuple) else [value])
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
    """Read an environment: the file `name`, or the environment of that name (see `environment_file`).

    Values of its parameters follow the name after a colon, as in `bfcl:category=base` and `a/b.yaml:x=1,y=2`.

    An `mcpServers` file is an environment of these servers, whose tasks come from a file and are rewarded by `solved`.

    Raises:
        ConfigError: there is no such environment, or its file is invalid; the message names file, key and remedy.
    """
    place, given = split_name(str(name))
    is_path = place.endswith((".yaml", ".yml", *JSON_SUFFIXES))
    path = Path(place) if is_path else environment_file(place, directory)
    if not path.is_file():
        raise ConfigError("no such file", file=path, remedy="correct the path")
    if path.suffix in JSON_SUFFIXES:
        with_values({}, given, file=path)
        return _of_servers(path)
    raw, values = with_values(_beside(read_mapping(path), path), given, file=path)
    raw |= {"name": f"{raw.get('name', path.stem)}{name_suffix(values)}", "parameters": values}
    if "file" in raw:
        raise ConfigError("unknown key 'file'", file=path, key="file", remedy="a file of tasks is tasks: {file: ...}")
    if "servers" not in raw:
        raise no_servers(raw, path, key="servers", expected="expected servers: {NAME: {command: ...}}")
    given = raw.pop("servers")
    if isinstance(given, str):  # a servers file beside this one
        found = read_servers(path.parent / given)
        raw = _settings(found.config) | raw
        entries = replace(found.entries, servers=_required(found.config))
    else:
        entries = read_entries(_required_by_default(given), file=path)
    faults = Faults([each for fault in entries.faults.values() for each in faults_of(fault)])
    with faults.collected():
        found = validate_around(Environment, {**raw, "file": str(path)}, entries, file=path)
        if not faults:
            return found
    raise one_error(faults)


def load_for_row(name: str, directory: str | Path | None = None) -> Environment:
    """As `load_environment`, for the name in a row: locks and traces go by the full one.

    Raises:
        ConfigError: also if the name leaves out a parameter.
    """
    found = load_environment(name, directory)
    if not name.endswith(full := name_suffix(found.parameters)):
        problem = f"the full name of this environment ends with {full}"
        raise ConfigError(problem, file=found.file, key="parameters", remedy=f"name it {found.name} in rows")
    return found


def _of_servers(path: Path) -> Environment:
    config = load_servers(path)
    given = {"servers": _required(config), "name": path.stem, "file": str(path), "reward": SOLVED}
    return validate(Environment, _settings(config) | given, file=path)


def _required(config: GatewayConfig) -> dict[str, ServerConfig]:
    return {name: entry.model_copy(update={"required": True}) for name, entry in config.servers.items()}


def _settings(config: GatewayConfig) -> dict[str, Any]:
    """What a servers file says beside its servers."""
    return {name: getattr(config, name) for name in config.model_fields_set - {"servers"}}


def _beside(raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """The content of an environment's file with the paths that are relative to it, and the reward of a file's tasks."""
    tasks, reward = raw.get("tasks"), raw.get("reward")
    if isinstance(tasks, dict) and isinstance(file := cast("dict[str, Any]", tasks).get("file"), str):
        raw = {"reward": SOLVED, **raw, "tasks": {**tasks, "file": path.parent / file}}
    functions: Any = cast("dict[str, Any]", reward).get("functions") if isinstance(reward, dict) else None
    if isinstance(functions, dict):
        given = cast("dict[str, Any]", functions)
        placed = {
            name: str(path.parent.absolute() / where) if ".py:" in str(where) else where
            for name, where in given.items()
        }
        raw = {**raw, "reward": {**cast("dict[str, Any]", reward), "functions": placed}}
    return raw


def environment_file(name: str, directory: str | Path | None = None) -> Path:
    """The file of the environment `name`.

    Args:
        name: without suffix; also a directory with an environment of the directory's name, as `init` makes.
        directory: where to look for `{name}.yaml`, `{name}/{name}.yaml` or a servers file `{name}.json`; None looks in
            `configs/environments` of the working directory, then among the included environments.

    Raises:
        ConfigError: there is none of this name.
    """
    directories = DEFAULT_DIRECTORIES if directory is None else (Path(directory),)
    files = (f"{name}.yaml", f"{name}/{name}.yaml", f"{name}.json")
    for path in (each / file for each in directories for file in files):
        if path.is_file():
            return path
    places = " or ".join(map(str, directories))
    known = sorted({found for each in directories for found in environment_names(each)})
    path = Path(name)
    if (own := path / f"{path.resolve().name}.yaml").is_file():
        return own
    if path.is_dir() and not directory:
        made = ", ".join(sorted(each.name for each in path.glob("*.yaml"))) or "no YAML file"
        problem = f"has no {path.resolve().name}.yaml"
        raise ConfigError(problem, file=path, remedy=f"name the environment's file; there is {made}")
    if path.suffix or len(path.parts) > 1:
        problem = "is neither .json nor .yaml" if path.is_file() else "no such file, and no environment has this name"
        raise ConfigError(problem, file=path, remedy="check the path: an mcpServers file, or an environment's")
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
    """Names of the environments and servers files in a directory, sorted; in one of its own it is `NAME/NAME.yaml`."""
    own = [path for path in Path(directory).glob("*/*.yaml") if path.stem == path.parent.name]
    servers = [path for path in Path(directory).glob("*.json") if _names_servers(path)]
    return sorted({path.stem for path in (*Path(directory).glob("*.yaml"), *own, *servers)})


def _names_servers(path: Path) -> bool:
    """Whether a JSON file is an `mcpServers` file, among others that may be large."""
    try:
        return path.stat().st_size < 2**20 and b'"mcpServers"' in path.read_bytes()
    except OSError:
        return False
