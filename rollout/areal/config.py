# pyright: basic, reportMissingImports=false
"""AReaL's configuration with our section, and what the workflow takes from it."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from typing import Any

from areal.api.alloc_mode import ModelAllocation
from areal.api.cli_args import GRPOConfig
from areal.utils.environ import is_single_controller
from omegaconf import OmegaConf

from mcp_rollout.rollout.areal.settings import Settings

WORKFLOW = "mcp_rollout.rollout.areal.workflow.MCPWorkflow"
"""As AReaL names it: with a single controller, rollout processes import it."""


@dataclass
class MCPConfig(GRPOConfig):
    """AReaL's GRPO configuration with our section."""

    mcp: dict[str, Any] = field(default_factory=dict)


def settings_of(config: MCPConfig) -> Settings:
    """Our section. Raises ConfigError where a key is missing, unknown or out of range."""
    section: Any = OmegaConf.to_container(OmegaConf.create(config.mcp), resolve=True)
    return Settings.of(section)


def processes_per_node(config: MCPConfig) -> int:
    """Processes of one node that play trajectories: the trainer's ranks, or a single controller's rollout workers."""
    if is_single_controller():
        servers = ModelAllocation.from_str(config.rollout.backend).parallel.dp_size
        return -(-servers // config.cluster.n_nodes)
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def workflow_arguments(config: MCPConfig, *, validate: bool = False) -> dict[str, Any]:
    """The workflow's arguments, for `train(workflow_kwargs=...)`; with `validate`, for `eval_workflow_kwargs`."""
    gconfig = config.eval_gconfig if validate else config.gconfig
    processes = processes_per_node(config)
    trajectories = config.train_dataset.batch_size * config.gconfig.n_samples
    return {
        "model": config.tokenizer_path,
        "gconfig": asdict(gconfig),
        "mcp": settings_of(config).model_dump(mode="json"),
        "seed": config.seed,
        "processes": processes,
        "window": max(1, trajectories // (processes * config.cluster.n_nodes)),
    }
