"""Read the file that registers agent loops by name: verl's `rollout.agent.agent_loop_config_path`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from gateway.errors import ConfigError

_REMEDY = "a list of `name` and `_target_`, as in configs/agent_loop.yaml"


def read_agent_loops(path: Path, *, key: str = "--agent-loops") -> list[str]:
    """The names in the file, which `agent_name` of a row can select.

    Args:
        key: Where the file is named, for messages.

    Raises:
        ConfigError: it cannot be read, or has another form.
    """
    try:
        entries: Any = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot be read: {error}", file=path, key=key, remedy=_REMEDY) from error
    try:
        return [str(entry["name"]) for entry in entries]
    except (TypeError, KeyError) as error:
        raise ConfigError("has an entry without a name", file=path, key=key, remedy=_REMEDY) from error
