"""Our section of verl's configuration, `actor_rollout_ref.rollout.custom.mcp`, and checks of verl's own settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, ConfigDict, Field, create_model
from verl.utils.import_utils import resolve_config_path

from gateway.config.models import GatewayConfig, validate
from gateway.errors import ConfigError
from rollout.environment.config import Environment, FiltersConfig, ThinkingConfig, ThinkingContext
from rollout.loop.limits import Limits
from rollout.loop.thinking import check_thoughts

Section = TypeVar("Section", bound=BaseModel)

KEY = "actor_rollout_ref.rollout.custom.mcp"
_ENGINES = ("sglang", "vllm", "trtllm")
"""Engines whose verl servers use the model's own length if none is configured."""


def _overrides(section: type[BaseModel]) -> Any:
    """A model with the fields of an environment's section, all optional: None keeps the environment's value.

    Bounds of single fields hold as in the section. Validators of the section do not run, since they would have to see
    the environment's values too.
    """
    fields: dict[str, Any] = {}
    for name, field in section.model_fields.items():
        own: Any = field.annotation
        if isinstance(own, type) and issubclass(own, BaseModel):
            own = _overrides(own)
        fields[name] = (Annotated[(own | None, *field.metadata)] if field.metadata else own | None, None)
    return create_model(f"{section.__name__}Overrides", __config__=ConfigDict(frozen=True, extra="forbid"), **fields)


class ThinkingOverrides(_overrides(ThinkingConfig)): ...


class FiltersOverrides(_overrides(FiltersConfig)): ...


class Settings(BaseModel):
    """Our section; None keeps the environment's own value."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    environments_dir: Path
    trace_dir: Path
    max_failed_share: float = Field(default=0.5, ge=0.0, le=1.0)
    """Largest share of a batch's trajectories that may be withdrawn; above it, training stops."""
    sampling_seed_key: str | None = None
    """The engine's sampling parameter for a request's seed (`seed`, `sampling_seed`); None leaves sampling unseeded."""
    max_sessions: int | None = Field(default=None, ge=1)
    """Concurrent sessions on one node, divided among its worker processes."""
    lease_timeout_s: float | None = Field(default=None, gt=0)
    wall_clock_s: float | None = Field(default=None, gt=0)
    tokens_per_turn: int | None = Field(default=None, ge=1)
    tell_budget: bool | None = None
    thinking: ThinkingOverrides | None = None
    filters: FiltersOverrides | None = None

    @classmethod
    def of(cls, config: DictConfig) -> Settings:
        """Read our section of a composed verl configuration.

        Raises:
            ConfigError: a key is missing, unknown or out of range; the message has its full path.
        """
        section = OmegaConf.select(config, KEY)
        if section is None:
            raise ConfigError("is missing", key=KEY, remedy="start from configs/mcp_grpo.yaml")
        values: Any = OmegaConf.to_container(section, resolve=True)
        settings = validate(cls, values, file=None, key=KEY)
        try:
            directory = Path(resolve_config_path(str(settings.environments_dir)))
        except FileNotFoundError:
            directory = settings.environments_dir
        if not directory.is_dir():
            remedy = "name the directory with the environments' YAML files"
            raise ConfigError(f"no such directory: {directory}", key=f"{KEY}.environments_dir", remedy=remedy)
        return settings.model_copy(update={"environments_dir": directory, "trace_dir": settings.trace_dir.absolute()})

    def apply(self, environment: Environment) -> Environment:
        """Return the environment with the trainer's overrides."""
        limits = {
            "wall_clock_s": self.wall_clock_s,
            "tokens_per_turn": self.tokens_per_turn,
            "tell_budget": self.tell_budget,
        }
        overrides = {
            "max_sessions": self.max_sessions,
            "lease_timeout_s": self.lease_timeout_s,
            "limits": limits,
            "thinking": self.thinking and self.thinking.model_dump(),
            "filters": self.filters and self.filters.model_dump(),
        }
        return _overridden(environment, overrides)


def _overridden(section: Section, overrides: Mapping[str, Any]) -> Section:
    """The section with those of the overrides that are not None, sections in it included."""
    update = {
        name: _overridden(getattr(section, name), value) if isinstance(value, dict) else value
        for name, value in overrides.items()
        if value is not None
    }
    return section.model_copy(update=update)


def share(config: GatewayConfig, workers_per_node: int) -> GatewayConfig:
    """Return one worker's share of the sessions and processes that the configuration allows a node."""
    sessions = max(1, config.max_sessions // workers_per_node)
    servers = {
        name: entry
        if entry.max_processes is None
        else entry.model_copy(update={"max_processes": max(1, entry.max_processes // workers_per_node)})
        for name, entry in config.servers.items()
    }
    return config.model_copy(update={"max_sessions": sessions, "servers": servers})


def context_tokens(rollout: DictConfig) -> int | None:
    """Longest sequence of the engine, in tokens; None if the model's own length decides.

    verl's SGLang server reserves one token, and returns an empty completion instead of using it.
    """
    longest = OmegaConf.select(rollout, "max_model_len")
    return None if longest is None else longest - (rollout.name == "sglang")


def limits_for(environment: Environment, rollout: DictConfig) -> Limits:
    """Limits of one trajectory: the environment's, else verl's `multi_turn.max_*_turns`, else 15 assistant turns."""
    return Limits.of(
        environment.limits,
        prompt_tokens=rollout.prompt_length,
        context_tokens=context_tokens(rollout),
        response_tokens=rollout.response_length,
        assistant_turns=rollout.multi_turn.max_assistant_turns,
        user_turns=rollout.multi_turn.max_user_turns,
    )


def check_thinking(environment: Environment, config: DictConfig) -> None:
    """Raises ConfigError if the environment's thinking policy needs another trainer or another tool format."""
    if environment.thinking.context is ThinkingContext.DROP_PREVIOUS and not config.trainer.use_v1:
        raise ConfigError(
            "drop_previous makes several training samples of one trajectory, and verl's v0 trainer takes one",
            file=environment.file,
            key="thinking.context",
            remedy="set trainer.use_v1=True, or keep the thinking",
        )
    check_thoughts(environment, str(config.actor_rollout_ref.rollout.multi_turn.format))


def check_model_length(config: DictConfig) -> None:
    """Validate that the model can read trajectories as long as verl's settings allow.

    Raises:
        ConfigError: `max_model_len` exceeds the model's own length, which verl's servers would reject after their
            start; or it is not given and the servers would reject the late turns of long trajectories.
    """
    from transformers import AutoConfig
    from verl.workers.rollout.utils import get_max_position_embeddings

    rollout, model = config.actor_rollout_ref.rollout, config.actor_rollout_ref.model
    if rollout.name not in _ENGINES:
        return
    known = AutoConfig.from_pretrained(str(model.path), trust_remote_code=bool(model.get("trust_remote_code")))
    own, given = get_max_position_embeddings(known), OmegaConf.select(rollout, "max_model_len")
    needed = rollout.prompt_length + rollout.response_length
    if given is not None and given > own:
        problem, remedy = f"is {given}, and the model reads {own} tokens at most", f"make it at most {own}"
    elif given is None and needed > own:
        problem = f"is not given, and the model reads {own} tokens at most, less than prompt and response ({needed})"
        remedy = f"make it {own}: trajectories that reach it end with token_limit"
    else:
        return
    raise ConfigError(problem, key="actor_rollout_ref.rollout.max_model_len", remedy=remedy)
