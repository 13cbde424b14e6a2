"""Settings that every trainer has for our environments, and how they change an environment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, create_model

from mcp_rollout.gateway.cassette.reading import Cassette
from mcp_rollout.gateway.cassette.replaying import Missing, Replay
from mcp_rollout.gateway.config.models import GatewayConfig
from mcp_rollout.gateway.config.pydantic_errors import validate
from mcp_rollout.gateway.errors import ConfigError, raise_all
from mcp_rollout.rollout.environment.config import Environment, environment_names, load_environment, load_for_row
from mcp_rollout.rollout.environment.hosts_config import HostsConfig
from mcp_rollout.rollout.environment.reward_config import RewardConfig
from mcp_rollout.rollout.environment.sections import (
    AgentOverride,
    FiltersConfig,
    Section,
    StrategyConfig,
    ThinkingConfig,
)

WORKERS_KEY = "actor_rollout_ref.rollout.agent.num_workers"
"""Where verl's configuration has the number of its agent-loop workers."""
_DECIDING = {"use", "action", "tokens"}
"""Keys that decide whether others of their section have an effect."""

Model = TypeVar("Model", bound=BaseModel)
Config = TypeVar("Config", bound=GatewayConfig)


def override_of(section: type[Section]) -> type[BaseModel]:
    """Build the model of a trainer's override: the fields of `section`, each optional and None by default.

    The constraints of single fields and the rules for nested sections apply. Validators that compare several fields do
    not, since an override is only a part of the section it changes: `overridden` applies them.

    Example:
        `ThinkingOverride = override_of(ThinkingConfig)`, and later
        `overridden(environment.thinking, given, file=environment.file, key="thinking")`.
    """
    fields: dict[str, Any] = {}
    for name, field in section.model_fields.items():
        kind: Any = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            nested = override_of(kind)
            fields[name] = (nested, nested())
        else:
            optional: Any = cast("Any", kind) | None
            fields[name] = (Annotated[optional, *field.metadata] if field.metadata else optional, None)
    return create_model(f"{section.__name__}Override", __config__=Section.model_config, **fields)


def overridden(own: Model, override: BaseModel, *, file: str, key: str) -> Model:
    """Return `own` with the values that `override` gives; fields that are None in `override` keep theirs.

    Args:
        file: The environment's file, for errors.
        key: Where the override is given, for errors.

    Raises:
        ConfigError: the override gives an option without an effect, which an environment's file may not have either.
            Beside `use` it may: a run that names its strategy can keep the options of others.
    """
    given: dict[str, Any] = {}
    for name in type(override).model_fields:
        value = getattr(override, name)
        if isinstance(value, BaseModel):
            given[name] = overridden(getattr(own, name), value, file=file, key=f"{key}.{name}")
        elif value is not None:
            given[name] = value
    # Of a section below, which has been validated above, only whether it is given.
    changed: dict[str, Any] = {
        name: {} if isinstance(given[name], BaseModel) else given[name]
        for name in override.model_dump(exclude_defaults=True)
    }
    if changed and "use" not in changed:
        validate(type(own), own.model_dump(include=_DECIDING) | changed, file=file, key=key)
    return own.model_copy(update=given)


if TYPE_CHECKING:  # a type checker cannot see classes that are built at run time
    ThinkingOverride = FiltersOverride = StrategyOverride = BaseModel
else:
    ThinkingOverride, FiltersOverride = override_of(ThinkingConfig), override_of(FiltersConfig)
    StrategyOverride = override_of(StrategyConfig)


class TrainingSettings(BaseModel):
    """Our section of a trainer's configuration; None keeps the environment's own value."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: ClassVar[str]
    """Where the trainer's configuration has the section."""
    workers_key: ClassVar[str] = WORKERS_KEY
    """Where it has the number of processes that play trajectories."""

    environments_dir: Path
    """Directory with the environments' YAML files."""
    trace_dir: Path
    """Directory for traces, run records and heartbeats."""
    chat_template: Path | None = None
    """A file with a chat template that replaces the model's own."""
    max_failed_share: float = Field(default=0.5, ge=0.0, le=1.0)
    """Largest share of a batch's trajectories that may be withdrawn; above it, training stops."""
    record: Path | None = None
    """A directory for a cassette of each worker, with every answer of the servers."""
    replay: Path | None = None
    """A cassette, or a directory of some, that answers in place of the servers."""
    replay_missing: Missing = Missing.FAIL
    """What a replay does where the cassette differs: `fail` withdraws the trajectory, `live` goes on with servers."""
    recorded_engine: Path | None = None
    """A directory of traces whose ids and log-probabilities are returned in place of the inference server's."""
    otel: bool = False
    """Whether workers send spans of trajectories, turns and calls, as OTEL_EXPORTER_OTLP_ENDPOINT says."""
    min_group_size: int = Field(default=2, ge=1)
    """A group with fewer trajectories left is withdrawn whole; at most the size of a group, so 1 where that is 1."""
    hosts: HostsConfig | None = None
    """Replaces the environment's `hosts`: where worlds are, if not beside the workers; see docs/scale.md."""
    max_sessions: int | None = Field(default=None, ge=1)
    """Concurrent sessions on one node, divided among its worker processes."""
    lease_timeout_s: float | None = Field(default=None, gt=0)
    """Replaces the environment's `lease_timeout_s`."""
    wall_clock_s: float | None = Field(default=None, gt=0)
    """Replaces the environment's `limits.wall_clock_s`."""
    attempts: int | None = Field(default=None, ge=1)
    """Replaces the environment's `limits.attempts`: how often a trajectory begins at most where its world is lost."""
    tokens_per_turn: int | None = Field(default=None, ge=1)
    """Replaces the environment's `limits.tokens_per_turn`."""
    tell_budget: bool | None = None
    """Replaces the environment's `limits.tell_budget`."""
    reward_weights: dict[str, float] | None = None
    """Replaces the environment's `reward.weights`, for example to train on a part of a score that is all or nothing."""
    thinking: ThinkingOverride = ThinkingOverride()
    """Replaces single keys of the environment's `thinking`."""
    filters: FiltersOverride = FiltersOverride()
    """Replaces single keys of the environment's `filters`."""
    agent: AgentOverride = AgentOverride()
    """Replaces the environment's `agent.use`, and single arguments in `agent.with`."""
    strategy: StrategyOverride = StrategyOverride()
    """Replaces single keys of the environment's `strategy`."""

    def placed(self, environments_dir: Path) -> Self:
        """With the directory of the environments, and absolute paths: workers may have another working directory.

        Raises:
            ConfigError: there is no such directory.
        """
        if not environments_dir.is_dir():
            remedy = "name the directory with the environments' YAML files"
            raise ConfigError(
                f"no such directory: {environments_dir}", key=f"{self.key}.environments_dir", remedy=remedy
            )
        paths = {name: value.absolute() for name, value in self if isinstance(value, Path)}
        return self.model_copy(update=paths | {"environments_dir": environments_dir.absolute()})

    def opened_replay(self) -> Replay | None:
        """The cassette to replay, read; None without one. Raises ConfigError where it cannot be read."""
        return None if self.replay is None else Replay(Cassette.read(self.replay), self.replay_missing)

    def load(self, name: str, *, workers_per_node: int = 1) -> Environment:
        """The environment `name` with the trainer's overrides. Raises ConfigError where it cannot be loaded."""
        return self.apply(load_for_row(name, self.environments_dir), workers_per_node=workers_per_node)

    def apply(self, environment: Environment, *, workers_per_node: int = 1) -> Environment:
        """The environment with the trainer's overrides, and one worker's share of the node's sessions."""
        limits = self.model_dump(
            include={"wall_clock_s", "attempts", "tokens_per_turn", "tell_budget"}, exclude_none=True
        )
        file, key = environment.file, self.key
        sections = {
            "limits": environment.limits.model_copy(update=limits),
            "thinking": overridden(environment.thinking, self.thinking, file=file, key=f"{key}.thinking"),
            "filters": overridden(environment.filters, self.filters, file=file, key=f"{key}.filters"),
            "strategy": overridden(environment.strategy, self.strategy, file=file, key=f"{key}.strategy"),
            "reward": self.reward_of(environment),
            "agent": self.agent.applied_to(environment.agent, file=file, key=f"{key}.agent"),
        }
        bounds = self.model_dump(include={"max_sessions", "lease_timeout_s"}, exclude_none=True)
        hosts = self.hosts or environment.hosts
        return share(
            environment.model_copy(update=sections | bounds | {"hosts": hosts}),
            # Elsewhere each host bounds its own sessions and processes, for all workers together.
            1 if hosts else workers_per_node,
            file=file or None,
            workers_key=self.workers_key,
        )

    def reward_of(self, environment: Environment) -> RewardConfig:
        """The environment's reward with the trainer's weights. Raises ConfigError where they name no part of it."""
        if self.reward_weights is None:
            return environment.reward
        given = {**environment.reward.model_dump(), "weights": self.reward_weights}
        return validate(RewardConfig, given, file=None, key=self.key)


def share(config: Config, workers_per_node: int, *, file: str | None = None, workers_key: str = WORKERS_KEY) -> Config:
    """The configuration with one worker's share of the sessions and processes that a node may have, and keeps warm.

    Args:
        file: The file that the configuration was read from, for errors.
        workers_key: The trainer's key of the number of workers, for errors.

    Raises:
        ConfigError: a maximum is below the number of workers, each of which needs at least one.
    """
    maxima = {f"servers.{name}.max_processes": entry.max_processes for name, entry in config.servers.items()}
    raise_all(
        [
            ConfigError(
                f"is {most} per node, and a node has {workers_per_node} workers, each of which needs one",
                file=file,
                key=key,
                remedy=f"make it at least {workers_per_node}, or lower {workers_key}",
            )
            for key, most in ({"max_sessions": config.max_sessions} | maxima).items()
            if most is not None and most < workers_per_node
        ]
    )
    servers = {
        name: entry.model_copy(
            update={
                "min_ready": -(-entry.min_ready // workers_per_node),
                "max_processes": entry.max_processes and entry.max_processes // workers_per_node,
            }
        )
        for name, entry in config.servers.items()
    }
    return config.model_copy(update={"max_sessions": config.max_sessions // workers_per_node, "servers": servers})


def reward_parts(settings: TrainingSettings) -> tuple[str, ...]:
    """Names of the reward parts of all environments in the directory, so that all samples of a run have equal keys."""
    parts: set[str] = set()
    for name in environment_names(settings.environments_dir):
        try:
            parts.update(settings.reward_of(load_environment(name, settings.environments_dir)).reported)
        except ConfigError:
            continue  # the lock, another file, an environment of other runs; a row that names it is refused on loading
    return tuple(sorted(parts))
