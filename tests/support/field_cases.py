"""The cases of the field in tests/field, one small YAML file each, as parameters of the test that plays their kind."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

FIELD = Path(__file__).parents[1] / "field"


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldCase:
    """One thing that a server, chat API, program, task file or answer does somewhere."""

    reported: str  # where: a project and its issue, a specification's section, or how it was met
    why: str  # why the expected outcome is right
    given: Any  # bytes or behaviour, as the kind's test reads it
    expected: Any  # the outcome, as the kind's test compares it


def field_cases(kind: str) -> list[Any]:
    """Return a `pytest.param` for each file of tests/field/`kind`, by its name.

    Raises:
        TypeError: If a file lacks a key of `FieldCase` or has another one.
    """
    found = sorted((FIELD / kind).glob("*.yaml"))
    assert found, f"no case in {FIELD / kind}"
    return [pytest.param(FieldCase(**yaml.safe_load(path.read_text("utf-8"))), id=path.stem) for path in found]
