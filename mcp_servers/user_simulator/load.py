"""Scenarios from where the command line says: a Python function or a JSON file."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import cast

from pydantic import TypeAdapter, ValidationError

from mcp_servers.user_simulator.scenario import Scenario

Scenarios = Callable[[str, int], Scenario]
"""(task, seed) -> the user's script, the same in every process. Raises LookupError for an unknown task."""

ANY_TASK = "*"


def load_scenarios(source: str) -> Scenarios:
    """Scenarios from ``module:function`` or ``FILE.json``.

    Raises:
        ValueError: There is nothing of the kind; the message says what is wrong and where.
    """
    return _from_file(Path(source)) if source.endswith(".json") else _from_module(source)


def _from_module(source: str) -> Scenarios:
    module, _, name = source.partition(":")
    if not module or not name:
        raise ValueError(f"--scenarios {source!r} is neither MODULE:FUNCTION nor FILE.json")
    try:
        found: object = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--scenarios {source!r}: {error}") from error
    if not callable(found):
        raise ValueError(f"--scenarios {source!r} is not a function (task, seed) -> Scenario")
    return cast(Scenarios, found)


def _from_file(path: Path) -> Scenarios:
    try:
        by_task = TypeAdapter(dict[str, Scenario]).validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise ValueError(f"--scenarios {path}: {error}") from error

    def scenario(task: str, seed: int) -> Scenario:
        if task not in by_task and ANY_TASK not in by_task:
            raise LookupError(f"{path.name} has no scenario for task {task!r}")
        return by_task.get(task) or by_task[ANY_TASK]

    return scenario
