"""The environments of a run, read and validated together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gateway.errors import Faults, raise_all
from rollout.environment.config import Environment, load_environment
from rollout.loop.agent import build_agent
from rollout.loop.reward import check_reward
from rollout.loop.thinking import check_thoughts


def load_environments(names: Sequence[str], directory: Path | None, *, tool_format: str | None) -> list[Environment]:
    """Read and validate environments.

    Args:
        names: YAML files or names.
        directory: where names are looked up; None for the usual places.
        tool_format: How the model writes calls; None where there is no model.

    Raises:
        ConfigError: some are invalid; `ConfigErrors` for several faults.
    """
    loaded: list[Environment] = []
    faults = Faults()
    for name in names:
        with faults.collected():
            environment = load_environment(name, directory)
            loaded.append(environment)
            for check in (build_agent, check_reward):
                with faults.collected():
                    check(environment)
            if tool_format is not None:
                check_thoughts(environment, tool_format)
    raise_all(faults)
    return loaded
