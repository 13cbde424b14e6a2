"""Our section of verl's configuration, `actor_rollout_ref.rollout.custom.mcp`, and checks of verl's own settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import structlog
from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, ConfigDict, Field, create_model
from verl.utils.import_utils import resolve_config_path

from gateway.config.models import GatewayConfig, validate
from gateway.errors import ConfigError
from rollout.environment.config import Environment, ThinkingConfig, ThinkingContext, environment_names, load_environment
from rollout.environment.filter_config import FiltersConfig
from rollout.environment.reward_config import RewardConfig, Section
from rollout.environment.strategy_config import StrategyConfig
from rollout.loop.limits import Limits
from rollout.loop.thinking import check_thoughts

log = structlog.get_logger(__name__)

Model = TypeVar("Model", bound=BaseModel)
Config = TypeVar("Config", bound=GatewayConfig)

KEY = "actor_rollout_ref.rollout.custom.mcp"
TRAINER_MODE = "mcp_sync"
"""`trainer.v1.trainer_mode` of the trainer class in `rollout.verl.trainer`."""
_ENGINES = ("sglang", "vllm", "trtllm")
"""Engines whose verl servers use the model's own length if none is configured."""


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
    ThinkingOverride = FiltersOverride = StrategyOverride = BaseModel
else:
    ThinkingOverride, FiltersOverride = override_of(ThinkingConfig), override_of(FiltersConfig)
    StrategyOverride = override_of(StrategyConfig)


ESTIMATORS = ("tree_grpo", "step_grpo")
"""Our values of `algorithm.adv_estimator`; they need our trainer."""


class AdvantagesConfig(Section):
    """Weights of our advantage estimators, see `rollout.verl.advantages`."""

    tree_weight: float = Field(default=0.5, ge=0.0, le=1.0)
    """In `tree_grpo`, the weight of the comparison below the branching point; that in the row has the rest."""
    step_weight: float = Field(default=1.0, ge=0.0)
    """In `step_grpo`, the weight of the comparison in the same state, beside that in the row."""


class Settings(BaseModel):
    """Our section; None keeps the environment's own value."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    environments_dir: Path
    trace_dir: Path
    max_failed_share: float = Field(default=0.5, ge=0.0, le=1.0)
    """Largest share of a batch's trajectories that may be withdrawn; above it, training stops."""
    min_group_size: int = Field(default=2, ge=1)
    """A group with fewer trajectories left is withdrawn whole; at most `rollout.n`, so 1 where that is 1."""
    record_trained: bool = False
    """Whether the trainer writes what it computed on each token beside the traces; needs our trainer, `mcp_sync`."""
    sampling_seed_key: str | None = None
    """The engine's sampling parameter for a request's seed (`seed`, `sampling_seed`); None leaves sampling unseeded."""
    max_sessions: int | None = Field(default=None, ge=1)
    """Concurrent sessions on one node, divided among its worker processes."""
    lease_timeout_s: float | None = Field(default=None, gt=0)
    wall_clock_s: float | None = Field(default=None, gt=0)
    tokens_per_turn: int | None = Field(default=None, ge=1)
    tell_budget: bool | None = None
    reward_weights: dict[str, float] | None = None
    """Replaces the environment's `reward.weights`, for example to train on a part of a score that is all or nothing."""
    thinking: ThinkingOverride = ThinkingOverride()
    filters: FiltersOverride = FiltersOverride()
    strategy: StrategyOverride = StrategyOverride()
    advantages: AdvantagesConfig = AdvantagesConfig()

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

    def apply(self, environment: Environment, *, workers_per_node: int = 1) -> Environment:
        """The environment with the trainer's overrides, and one worker's share of the node's sessions."""
        limits = self.model_dump(include={"wall_clock_s", "tokens_per_turn", "tell_budget"}, exclude_none=True)
        reward = environment.reward
        if self.reward_weights is not None:
            given = {**reward.model_dump(), "weights": self.reward_weights}
            reward = validate(RewardConfig, given, file=None, key=KEY)
        sections = {
            "limits": environment.limits.model_copy(update=limits),
            "thinking": overridden(environment.thinking, self.thinking),
            "filters": overridden(environment.filters, self.filters),
            "strategy": overridden(environment.strategy, self.strategy),
            "reward": reward,
        }
        bounds = self.model_dump(include={"max_sessions", "lease_timeout_s"}, exclude_none=True)
        return share(environment.model_copy(update=sections | bounds), workers_per_node, file=environment.file or None)


def share(config: Config, workers_per_node: int, *, file: str | None = None) -> Config:
    """The configuration with one worker's share of the sessions and processes that a node may have.

    Args:
        file: The file that the configuration was read from, for errors.

    Raises:
        ConfigError: a maximum is below the number of workers, each of which needs at least one.
    """
    maxima = {f"servers.{name}.max_processes": entry.max_processes for name, entry in config.servers.items()}
    for key, most in ({"max_sessions": config.max_sessions} | maxima).items():
        if most is not None and most < workers_per_node:
            raise ConfigError(
                f"is {most} per node, and a node has {workers_per_node} agent-loop workers, each of which needs one",
                file=file,
                key=key,
                remedy=f"make it at least {workers_per_node}, or lower actor_rollout_ref.rollout.agent.num_workers",
            )
    servers = {
        name: entry.model_copy(update={"max_processes": entry.max_processes // workers_per_node})
        if entry.max_processes is not None
        else entry
        for name, entry in config.servers.items()
    }
    return config.model_copy(update={"max_sessions": config.max_sessions // workers_per_node, "servers": servers})


def workers_per_node(config: DictConfig) -> int:
    """Number of agent-loop workers that verl starts on a node, at most: it spreads them evenly."""
    return -(-config.actor_rollout_ref.rollout.agent.num_workers // config.trainer.nnodes)


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


def reward_parts(settings: Settings) -> tuple[str, ...]:
    """Names of the reward parts of all environments in the directory, so that all samples of a run have equal keys."""
    parts: set[str] = set()
    for name in environment_names(settings.environments_dir):
        try:
            parts.update(load_environment(name, settings.environments_dir).reward.reported)
        except ConfigError as error:  # if a row names the environment, loading it reports the error again
            log.warning("environment file skipped", file=name, error=str(error))
    return tuple(sorted(parts))


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
