"""The agent loops that verl's workers will know by name."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from verl.utils.import_utils import import_external_libs, resolve_config_path

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.environment.agent_loops import read_agent_loops
from mcp_rollout.rollout.environment.row_validation import RowProblem, agent_problems

_KEY = "actor_rollout_ref.rollout.agent.agent_loop_config_path"


def registered_agents(config: DictConfig) -> set[str]:
    """verl's own agent loops, those of the configured file, and those that an external library registers."""
    import verl.experimental.agent_loop.agent_loop as verl_loops

    external: Any = OmegaConf.select(config, "actor_rollout_ref.model.external_lib") or []
    try:
        import_external_libs([external] if isinstance(external, str) else list(external))
    except ImportError as error:
        remedy = "name modules that can be imported"
        raise ConfigError(str(error), key="actor_rollout_ref.model.external_lib", remedy=remedy) from error
    registry: dict[str, Any] = verl_loops._agent_loop_registry  # pyright: ignore[reportPrivateUsage]
    file = OmegaConf.select(config, _KEY)
    return {*registry, *(read_agent_loops(_resolved(file), key=_KEY) if file else ())}


def unknown_agents(config: DictConfig, path: Path, agents: Collection[str]) -> list[RowProblem]:
    """The rows of a file that none of `agents` plays."""
    default = OmegaConf.select(config, "actor_rollout_ref.rollout.agent.default_agent_loop")
    return agent_problems(path, agents, default_agent=default, remedy=f"{_KEY} registers further ones")


def _resolved(file: str) -> Path:
    try:
        return Path(resolve_config_path(file))
    except FileNotFoundError as error:
        raise ConfigError(str(error), file=file, key=_KEY, remedy="name an existing file") from error
