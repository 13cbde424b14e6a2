"""Combinations of an environment's policies, verl's settings and the model that cannot be trained."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from gateway.errors import ConfigError
from rollout.environment.config import Environment, ThinkingContext
from rollout.loop.thinking import check_thoughts


def check_thinking(environment: Environment, config: DictConfig) -> None:
    """Raises ConfigError where the thinking policy needs another trainer, or another model."""
    if environment.thinking.context is ThinkingContext.DROP_PREVIOUS and not config.trainer.use_v1:
        raise ConfigError(
            "drop_previous makes several training samples of one trajectory, and verl's v0 trainer takes one",
            file=environment.file,
            key="thinking.context",
            remedy="set trainer.use_v1=True, or keep the thinking",
        )
    check_thoughts(environment, str(config.actor_rollout_ref.rollout.multi_turn.format))


_ENGINES = ("sglang", "vllm", "trtllm")
"""Those whose servers in verl take the model's own length where none is given."""


def check_model_length(config: DictConfig) -> None:
    """Whether trajectories may become as long as the settings say.

    Raises:
        ConfigError: `max_model_len` is more than the model's own length, which verl's servers refuse once they have
            started; or it is not given and they would refuse turns of long trajectories instead.
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
