"""The run record of a training with verl."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from gateway.gateway import Gateway
from rollout.environment.config import Environment
from rollout.trace.run_record import RunRecord
from rollout.training.run_record import training_record

_SAMPLING = ("temperature", "top_p", "top_k", "n", "prompt_length", "response_length", "val_kwargs", "name", "custom")


def record_of(
    config: DictConfig, environment: Environment, gateway: Gateway, tools: Mapping[str, dict[str, Any]] | None
) -> RunRecord:
    """What the trajectories of an environment share, from verl's configuration; see `training_record`."""
    rollout: Any = OmegaConf.to_container(config.actor_rollout_ref.rollout, resolve=True)
    model: Any = OmegaConf.to_container(config.actor_rollout_ref.model, resolve=True)
    return training_record(
        environment,
        gateway,
        tools,
        engine="verl",
        model=model["path"],
        chat_template=model.get("custom_chat_template"),
        tool_format=rollout["multi_turn"]["format"],
        sampling={name: rollout[name] for name in _SAMPLING if name in rollout},
        lock=rollout["multi_turn"]["tool_config_path"],
    )
