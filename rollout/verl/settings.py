"""Our section of verl's configuration, `actor_rollout_ref.rollout.custom.mcp`, and the limits drawn from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, ConfigDict, Field
from verl.utils.import_utils import resolve_config_path

from gateway.config.models import GatewayConfig, ServerConfig, validate
from gateway.errors import ConfigError
from rollout.environment.config import (
    Environment,
    FilterAction,
    FiltersConfig,
    ThinkingContext,
    ThinkingLoss,
    ThinkingReward,
)
from rollout.loop.limits import Limits

Section = TypeVar("Section", bound=BaseModel)

KEY = "actor_rollout_ref.rollout.custom.mcp"


class _Override(BaseModel):
    """Fields of an environment's section; what is None stays as the environment has it."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ThinkingOverride(_Override):
    loss: ThinkingLoss | None = None
    reward: ThinkingReward | None = None
    context: ThinkingContext | None = None
    tokens_per_turn: int | None = Field(default=None, ge=1)


class FilterOverride(_Override):
    action: FilterAction | None = None
    penalty: float | None = Field(default=None, gt=0, allow_inf_nan=False)


class RepeatedCallsOverride(FilterOverride):
    times: int | None = Field(default=None, ge=2)


class LongThinkingOverride(FilterOverride):
    tokens: int | None = Field(default=None, ge=1)


class FiltersOverride(_Override):
    void: FilterOverride = FilterOverride()
    repeated_calls: RepeatedCallsOverride = RepeatedCallsOverride()
    long_thinking: LongThinkingOverride = LongThinkingOverride()

    def apply(self, own: FiltersConfig) -> FiltersConfig:
        return own.model_copy(
            update={
                "void": _updated(own.void, self.void),
                "repeated_calls": _updated(own.repeated_calls, self.repeated_calls),
                "long_thinking": _updated(own.long_thinking, self.long_thinking),
            }
        )


class Settings(BaseModel):
    """Where a value is None, the environment's own is used."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    environments_dir: Path
    trace_dir: Path
    max_failed_share: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of a batch's trajectories that may be withdrawn before training stops."""
    sampling_seed_key: str | None = None
    """Name of the engine's per-request seed (`seed`, `sampling_seed`); None leaves sampling unseeded."""
    max_sessions: int | None = Field(default=None, ge=1)
    """Sessions on one node at the same time, divided among its worker processes."""
    lease_timeout_s: float | None = Field(default=None, gt=0)
    wall_clock_s: float | None = Field(default=None, gt=0)
    tokens_per_turn: int | None = Field(default=None, ge=1)
    tell_budget: bool | None = None
    thinking: ThinkingOverride = ThinkingOverride()
    filters: FiltersOverride = FiltersOverride()

    @classmethod
    def of(cls, config: DictConfig) -> Settings:
        """Read our section of a composed verl configuration.

        Raises:
            ConfigError: a key is missing, unknown or out of range; the message names it by its full path.
        """
        section = OmegaConf.select(config, KEY)
        if section is None:
            raise ConfigError("is missing", key=KEY, remedy="start from configs/mcp_grpo.yaml")
        values: Any = OmegaConf.to_container(section, resolve=True)
        settings = validate(cls, values, file=None, key=KEY)
        try:
            directory = resolve_config_path(str(settings.environments_dir))
        except FileNotFoundError as error:
            raise _no_directory(settings) from error
        if not Path(directory).is_dir():
            raise _no_directory(settings)
        return settings.model_copy(
            update={"environments_dir": Path(directory), "trace_dir": settings.trace_dir.absolute()}
        )

    def apply(self, environment: Environment, *, workers_per_node: int = 1) -> Environment:
        """The environment with the trainer's overrides, and one worker's share of the node's sessions."""
        sessions = max(1, (self.max_sessions or environment.max_sessions) // workers_per_node)
        overrides: dict[str, Any] = {"max_sessions": sessions, "lease_timeout_s": self.lease_timeout_s}
        limits: dict[str, Any] = {
            "wall_clock_s": self.wall_clock_s,
            "tokens_per_turn": self.tokens_per_turn,
            "tell_budget": self.tell_budget,
        }
        servers = _shared_out(environment.servers, workers_per_node)
        return environment.model_copy(
            update=_given(overrides)
            | {
                "servers": servers,
                "limits": environment.limits.model_copy(update=_given(limits)),
                "thinking": _updated(environment.thinking, self.thinking),
                "filters": self.filters.apply(environment.filters),
            }
        )


def _no_directory(settings: Settings) -> ConfigError:
    remedy = "name the directory with the environments' YAML files"
    return ConfigError(f"no such directory: {settings.environments_dir}", key=f"{KEY}.environments_dir", remedy=remedy)


def share(config: GatewayConfig, workers_per_node: int) -> GatewayConfig:
    """One worker's part of the sessions and processes that a node may have."""
    sessions = max(1, config.max_sessions // workers_per_node)
    servers = _shared_out(config.servers, workers_per_node)
    return config.model_copy(update={"max_sessions": sessions, "servers": servers})


def _shared_out(servers: Mapping[str, ServerConfig], workers_per_node: int) -> dict[str, ServerConfig]:
    """The servers with one worker's part of their maxima, which are a node's."""
    return {
        name: entry.model_copy(update={"max_processes": max(1, entry.max_processes // workers_per_node)})
        if entry.max_processes is not None
        else entry
        for name, entry in servers.items()
    }


def _updated(own: Section, override: _Override) -> Section:
    return own.model_copy(update=_given(override.model_dump()))


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def context_tokens(rollout: DictConfig) -> int | None:
    """Most tokens that the engine puts into one sequence; None where the model decides.

    verl's SGLang server keeps one free, and gives an empty completion where another would need it.
    """
    longest = OmegaConf.select(rollout, "max_model_len")
    return None if longest is None else longest - (rollout.name == "sglang")


def limits_for(environment: Environment, rollout: DictConfig) -> Limits:
    """Bounds of one trajectory: the environment's, else verl's `multi_turn.max_*_turns`, else 15 assistant turns."""
    return Limits.of(
        environment.limits,
        prompt_tokens=rollout.prompt_length,
        context_tokens=context_tokens(rollout),
        response_tokens=rollout.response_length,
        assistant_turns=rollout.multi_turn.max_assistant_turns,
        user_turns=rollout.multi_turn.max_user_turns,
    )
