"""What must not change while a run is interrupted and resumed, kept beside its traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from gateway.errors import ConfigError

FILE = "run.json"

Settings = dict[str, str | int | float | None]
"""By the name of the option that sets it, without its dashes."""


def keep_settings(directory: Path, settings: Settings) -> None:
    """Write them where a run begins; nothing is written where one goes on.

    Raises:
        ConfigError: the directory cannot be written.
    """
    path = directory / FILE
    if path.is_file():
        return
    partial = path.with_name(FILE + ".partial")
    try:
        partial.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror or error}", file=path, key="--out") from error


def compare_settings(directory: Path, settings: Settings) -> None:
    """Raises ConfigError where the run in `directory` had others; where none is, nothing is compared."""
    path = directory / FILE
    if not path.is_file():
        return
    try:
        read: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot be read: {error}", file=path, remedy="name another --out") from error
    before = cast("dict[str, Any]", read) if isinstance(read, dict) else {}
    for name, value in settings.items():
        if name in before and before[name] != value:
            problem = f"the run in this directory had {before[name]!r}, not {value!r}"
            raise ConfigError(problem, file=path, key=f"--{name}", remedy="give it again, or name another --out")
