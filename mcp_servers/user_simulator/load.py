"""Users from where the command line says: a Python function or a JSON file."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

from pydantic import BaseModel, TypeAdapter, ValidationError

from mcp_servers.user_simulator.scenario import Scenario

M = TypeVar("M", bound=BaseModel)
Scenarios = Callable[[str, int], Scenario]
"""(task, seed) -> the user's script, the same in every process. Raises LookupError for an unknown task."""

ANY_TASK = "*"


def load_scenarios(source: str) -> Scenarios:
    """Scenarios from ``module:function`` or ``FILE.json``; raises as `load_by_task` does."""
    return load_by_task(source, Scenario, option="--scenarios")


def load_by_task(source: str, model: type[M], *, option: str) -> Callable[[str, int], M]:
    """A function (task, seed) -> `model` from ``module:function``, or from a JSON object of them by task.

    Raises:
        ValueError: There is nothing of the kind; the message says what is wrong and where.
    """
    if source.endswith(".json"):
        return _from_file(Path(source), model, option)
    return cast("Callable[[str, int], M]", _from_module(source, model, option))


def _from_module(source: str, model: type[BaseModel], option: str) -> object:
    module, _, name = source.partition(":")
    if not module or not name:
        raise ValueError(f"{option} {source!r} is neither MODULE:FUNCTION nor FILE.json")
    try:
        found: object = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{option} {source!r}: {error}") from error
    if not callable(found):
        raise ValueError(f"{option} {source!r} is not a function (task, seed) -> {model.__name__}")
    return found


def _from_file(path: Path, model: type[M], option: str) -> Callable[[str, int], M]:
    try:
        raw = TypeAdapter(dict[str, object]).validate_json(path.read_bytes())
        by_task = {task: model.model_validate(given) for task, given in raw.items()}
    except (OSError, ValidationError) as error:
        raise ValueError(f"{option} {path}: {error}") from error

    def found(task: str, seed: int) -> M:
        if task not in by_task and ANY_TASK not in by_task:
            raise LookupError(f"{path.name} has nothing for task {task!r}")
        return by_task.get(task) or by_task[ANY_TASK]

    return found
