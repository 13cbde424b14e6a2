"""Our section of verl's configuration, `actor_rollout_ref.rollout.custom.mcp`, and what we read of verl's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from pydantic import Field, PrivateAttr
from verl.utils.import_utils import resolve_config_path

from mcp_rollout.gateway.config.pydantic_errors import validate
from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.reward_config import CUSTOM_PART
from mcp_rollout.rollout.environment.sections import Section
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.tokens.chat_template import read_chat_template
from mcp_rollout.rollout.training.settings import TrainingSettings, reward_parts
from mcp_rollout.rollout.verl.custom_reward import CustomReward, verls_reward, with_verls_reward

KEY = "actor_rollout_ref.rollout.custom.mcp"
TEMPLATE_KEY = "actor_rollout_ref.model.custom_chat_template"
"""verl's key for the text of a template; ours names a file."""
TRAINER_MODE, COLOCATE_MODE, SEPARATE_MODE = "mcp_sync", "mcp_colocate_async", "mcp_separate_async"
"""`trainer.v1.trainer_mode` of the trainer classes in `rollout.verl.trainer`."""
TRAINER_MODES = (TRAINER_MODE, COLOCATE_MODE, SEPARATE_MODE)
_ENGINES = ("sglang", "vllm", "trtllm")
"""Engines whose verl servers use the model's own length if none is configured."""

ESTIMATORS = ("tree_grpo", "step_grpo")
"""Our values of `algorithm.adv_estimator`; they need our trainer."""


class AdvantagesConfig(Section):
    """Weights of our advantage estimators, see `rollout.verl.advantages`."""

    tree_weight: float = Field(default=0.5, ge=0.0, le=1.0)
    """In `tree_grpo`, the weight of the comparison below the branching point; that in the row has the rest."""
    step_weight: float = Field(default=1.0, ge=0.0)
    """In `step_grpo`, the weight of the comparison in the same state, beside that in the row."""


class Settings(TrainingSettings):
    """Our section."""

    key = KEY

    record_trained: bool = False
    """Whether the trainer writes what it computed on each token beside the traces; needs a trainer of ours."""
    void_batches: int = Field(default=3, ge=0)
    """Batches in a row that teach nothing for a reason that does not heal, after which training stops; 0 for never."""
    worker_start_timeout_s: float = Field(default=600.0, gt=0)
    """How long the replacement of a dead agent worker may take to start; after that the others play its prompts."""
    sampling_seed_key: str | None = None
    """The engine's sampling parameter for a request's seed (`seed`, `sampling_seed`); None leaves sampling unseeded."""
    seed: int = Field(default=0, ge=0)
    """Seed of the run: with row, sibling, step and turn it seeds each generation and a tree's branching points."""
    advantages: AdvantagesConfig = AdvantagesConfig()
    custom_reward: CustomReward | None = None
    """How verl's own reward, such as its `custom_reward_function`, and the environment's make one."""
    custom_reward_timeout_s: float = Field(default=600.0, gt=0)
    """How long verl's own reward of one trajectory may take."""
    _asked: str | None = PrivateAttr(default=None)
    """The key with which verl's configuration asks for a reward of its own."""

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
        if values.get("chat_template") and not OmegaConf.select(config, TEMPLATE_KEY):
            remedy = "keep hydra.callbacks.mcp_preflight of configs/mcp_grpo.yaml, which reads it"
            raise ConfigError("has not been read", key=f"{KEY}.chat_template", remedy=remedy)
        settings = validate(cls, values, file=None, key=KEY)
        try:
            directory = Path(resolve_config_path(str(settings.environments_dir)))
        except FileNotFoundError:
            directory = settings.environments_dir
        settings = settings.placed(directory)
        settings._asked = verls_reward(config)
        return settings

    @property
    def has_custom_reward(self) -> bool:
        """Whether verl's own reward is part of each trajectory's."""
        return self._asked is not None and self.custom_reward is not CustomReward.IGNORE

    @property
    def reward_parts(self) -> tuple[str, ...]:
        """Names of the reward parts that every trajectory of the run reports."""
        return (*reward_parts(self), *((CUSTOM_PART,) if self.has_custom_reward else ()))

    def apply(self, environment: Environment, *, workers_per_node: int = 1) -> Environment:
        environment = super().apply(environment, workers_per_node=workers_per_node)
        if self._asked is None:
            return environment
        return with_verls_reward(environment, self.custom_reward, asked=self._asked, key=f"{KEY}.custom_reward")


def read_template(config: DictConfig) -> None:
    """Put the text of our `chat_template`, a file, into verl's key.

    Raises:
        ConfigError: the file cannot be read, or verl's key has another template.
    """
    key = f"{KEY}.chat_template"
    file = OmegaConf.select(config, key)
    text = read_chat_template(Path(str(file)) if file else None, key=key)
    if text is None:
        return
    if OmegaConf.select(config, TEMPLATE_KEY) not in (None, text):
        raise ConfigError(f"{TEMPLATE_KEY} is given too", key=key, remedy="give one of them")
    OmegaConf.update(config, TEMPLATE_KEY, text)


def groups_per_update(config: DictConfig) -> int:
    """Rows of one batch: those of a step, which verl's `separate_async` divides by `parameter_sync_step`."""
    is_separate = config.trainer.v1.trainer_mode in ("separate_async", SEPARATE_MODE)
    return config.data.train_batch_size // (config.trainer.v1.separate_async.parameter_sync_step if is_separate else 1)


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


def check_model_length(config: DictConfig) -> None:
    """Validate that the model can read trajectories as long as verl's settings allow.

    Raises:
        ConfigError: `max_model_len` is not given, and the servers would reject the late turns of long trajectories.
    """
    from transformers import AutoConfig
    from verl.workers.rollout.utils import get_max_position_embeddings

    rollout, model = config.actor_rollout_ref.rollout, config.actor_rollout_ref.model
    if rollout.name not in _ENGINES or OmegaConf.select(rollout, "max_model_len") is not None:
        return
    known = AutoConfig.from_pretrained(str(model.path), trust_remote_code=bool(model.get("trust_remote_code")))
    own, needed = get_max_position_embeddings(known), rollout.prompt_length + rollout.response_length
    if needed > own:
        problem = f"is not given, and the model reads {own} tokens at most, less than prompt and response ({needed})"
        remedy = f"make it {own}: trajectories that reach it end with token_limit"
        raise ConfigError(problem, key="actor_rollout_ref.rollout.max_model_len", remedy=remedy)
