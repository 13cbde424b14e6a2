"""Our section of verl's configuration, `actor_rollout_ref.rollout.custom.mcp`, and the limits drawn from it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, ConfigDict, Field, create_model
from verl.utils.import_utils import resolve_config_path

from gateway.config.models import GatewayConfig, validate
from gateway.errors import ConfigError
from rollout.environment.config import Environment, FiltersConfig, ThinkingConfig
from rollout.environment.reward_config import Section
from rollout.loop.limits import Limits

Model = TypeVar("Model", bound=BaseModel)
Config = TypeVar("Config", bound=GatewayConfig)

KEY = "actor_rollout_ref.rollout.custom.mcp"


def override_of(section: type[Section]) -> type[BaseModel]:
    """Build the model of a trainer's override: the fields of `section`, each optional and None by default.

    The constraints of single fields and the rules for nested sections apply. Validators that compare several fields do
    not: an override is only a part of the section it changes.

    Example:
        `ThinkingOverride = override_of(ThinkingConfig)`, and later `overridden(environment.thinking, given)`.
    """
    fields: dict[str, Any] = {}
    for name, field in section.model_fields.items():
        kind: Any = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            nested = override_of(kind)
            fields[name] = (nested, nested())
        else:
            optional: Any = kind | None
            fields[name] = (Annotated[optional, *field.metadata] if field.metadata else optional, None)
    return create_model(f"{section.__name__}Override", __config__=Section.model_config, **fields)


def overridden(own: Model, override: BaseModel) -> Model:
    """Return `own` with the values that `override` gives; fields that are None in `override` keep theirs."""
    given: dict[str, Any] = {}
    for name in type(override).model_fields:
        value = getattr(override, name)
        if isinstance(value, BaseModel):
            given[name] = overridden(getattr(own, name), value)
        elif value is not None:
            given[name] = value
    return own.model_copy(update=given)


if TYPE_CHECKING:  # a type checker cannot see classes that are built at run time
    ThinkingOverride = FiltersOverride = BaseModel
else:
    ThinkingOverride, FiltersOverride = override_of(ThinkingConfig), override_of(FiltersConfig)


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
        limits = self.model_dump(include={"wall_clock_s", "tokens_per_turn", "tell_budget"}, exclude_none=True)
        sections = {
            "limits": environment.limits.model_copy(update=limits),
            "thinking": overridden(environment.thinking, self.thinking),
            "filters": overridden(environment.filters, self.filters),
        }
        bounds = self.model_dump(include={"max_sessions", "lease_timeout_s"}, exclude_none=True)
        return share(environment.model_copy(update=sections | bounds), workers_per_node)


def _no_directory(settings: Settings) -> ConfigError:
    remedy = "name the directory with the environments' YAML files"
    return ConfigError(f"no such directory: {settings.environments_dir}", key=f"{KEY}.environments_dir", remedy=remedy)


def share(config: Config, workers_per_node: int) -> Config:
    """The configuration with one worker's share of the sessions and processes that a node may have."""
    servers = {
        name: entry.model_copy(update={"max_processes": max(1, entry.max_processes // workers_per_node)})
        if entry.max_processes is not None
        else entry
        for name, entry in config.servers.items()
    }
    sessions = max(1, config.max_sessions // workers_per_node)
    return config.model_copy(update={"max_sessions": sessions, "servers": servers})


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
