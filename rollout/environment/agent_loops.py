"""Read the file that registers agent loops by name: verl's `rollout.agent.agent_loop_config_path`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import yaml

from mcp_rollout.gateway.errors import ConfigError

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
    if not isinstance(entries, list):
        raise ConfigError("is not a list", file=path, key=key, remedy=_REMEDY)
    loops = cast("list[Any]", entries)
    names = [cast("Mapping[str, Any]", each).get("name") if isinstance(each, Mapping) else None for each in loops]
    if nameless := [str(number) for number, name in enumerate(names, start=1) if name is None]:
        what = "entry" if len(nameless) == 1 else "entries"
        raise ConfigError(f"{what} {', '.join(nameless)} without a name", file=path, key=key, remedy=_REMEDY)
    return list(map(str, names))
