"""Settings that every trainer has for our environments, and how they change an environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from mcp_rollout.gateway.cassette.reading import Cassette
from mcp_rollout.gateway.cassette.replaying import Missing, Replay
from mcp_rollout.gateway.config.models import GatewayConfig
from mcp_rollout.gateway.errors import ConfigError, raise_all
from mcp_rollout.rollout.environment.config import Environment, environment_names, load_environment, load_for_row
from mcp_rollout.rollout.environment.overrides import overridden

WORKERS_KEY = "actor_rollout_ref.rollout.agent.num_workers"
"""Where verl's configuration has the number of its agent-loop workers."""

Config = TypeVar("Config", bound=GatewayConfig)


class TrainingSettings(BaseModel):
    """Our section of a trainer's configuration."""

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
    environment: dict[str, Any] = Field(default={})
    """Keys of an environment's file, which go above the file's own; null drops one. Hydra adds them with `++`."""

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
        changed = self.overridden(environment)
        return share(
            changed,
            # Elsewhere each host bounds its own sessions and processes, for all workers together.
            1 if changed.hosts else workers_per_node,
            file=changed.file or None,
            workers_key=self.workers_key,
        )

    def overridden(self, environment: Environment) -> Environment:
        """The environment with the trainer's overrides. Raises ConfigError where they do not fit it."""
        return overridden(environment, self.environment, key=f"{self.key}.environment")


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
            parts.update(settings.overridden(load_environment(name, settings.environments_dir)).reward.reported)
        except ConfigError:
            continue  # the lock, another file, an environment of other runs; a row that names it is refused on loading
    return tuple(sorted(parts))
