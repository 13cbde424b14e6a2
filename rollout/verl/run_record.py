"""The run record of a training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from gateway.catalogue.names import policy_tools
from gateway.gateway import Gateway
from rollout.environment.config import Environment
from rollout.trace.run_record import (
    RunRecord,
    environment_identity,
    file_digest,
    installed_versions,
    model_identity,
    server_identities,
    source_commit,
    tool_digests,
)

_SAMPLING = ("temperature", "top_p", "top_k", "n", "prompt_length", "response_length", "val_kwargs", "name", "custom")


def training_record(
    environment: Environment, gateway: Gateway, tools: Mapping[str, dict[str, Any]] | None, config: DictConfig
) -> RunRecord:
    """What the trajectories of an environment share. Reads files and asks git: not for an event loop.

    Args:
        environment: with the trainer's overrides.
        tools: schemas from the lock; None without one.
        config: verl's configuration.
    """
    rollout: Any = OmegaConf.to_container(config.actor_rollout_ref.rollout, resolve=True)
    model: Any = OmegaConf.to_container(config.actor_rollout_ref.model, resolve=True)
    lock = rollout["multi_turn"]["tool_config_path"]
    offered = tools.values() if tools is not None else map(_schema, policy_tools(gateway.catalogue))
    return RunRecord(
        kind="training",
        environment=environment_identity(environment),
        tools=list(offered),
        tool_digests=tool_digests(gateway.catalogue),
        servers=server_identities(gateway),
        engine="verl",
        sampling={name: rollout[name] for name in _SAMPLING if name in rollout},
        model=model_identity(model["path"]) | {"custom_chat_template": model.get("custom_chat_template")},
        lock={"file": lock, "sha256": file_digest(lock)} if lock else None,
        settings={"tool_format": rollout["multi_turn"]["format"]},
        versions=installed_versions(),
        commit=source_commit(),
    )


def _schema(tool: Any) -> dict[str, Any]:
    return tool.openai_schema()
