"""Parameters of an environment: its file declares them, and its name gives their values, as in `bfcl:category=base`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from mcp_rollout.gateway.config.pydantic_errors import near, validate
from mcp_rollout.gateway.config.variables import expand
from mcp_rollout.gateway.errors import ConfigError, InvalidValue
from mcp_rollout.rollout.environment.sections import Section

_OF_ALL_VALUES = ("hosts", "reward")
"""Sections that a training reads before a row gives the values: the columns of its samples depend on them."""


class Parameter(Section):
    """A parameter of an environment; its file has the value wherever it says `${parameters.NAME}`."""

    default: str
    """The value where the environment's name gives none."""
    choices: tuple[str, ...] = Field(min_length=1)
    """All values, of letters, digits and `_.-`."""

    @model_validator(mode="after")
    def _has_its_default(self) -> Self:
        if wrong := [each for each in self.choices if not re.fullmatch(r"[\w.-]+", each)]:
            raise InvalidValue(f"{wrong[0]!r} cannot stand in a name", "use letters, digits and _.-")
        if self.default not in self.choices:
            raise InvalidValue(f"the default {self.default!r} is not one of the choices", "add it to them")
        return self


class _Declared(Section):
    parameters: dict[str, Parameter] = Field(default_factory=dict)


def split_name(name: str) -> tuple[str, dict[str, str]]:
    """An environment's name or path, and the values that follow it: `a.yaml:x=1,y=2`. Raises ConfigError."""
    place, colon, text = name.rpartition(":")
    if not colon or "/" in text or Path(name).is_file():
        return name, {}
    pairs = [pair.partition("=") for pair in text.split(",")]
    values = {parameter: value for parameter, _, value in pairs}
    if len(values) < len(pairs) or not all(parameter and equals for parameter, equals, _ in pairs):
        raise ConfigError(f"{text!r} is not PARAMETER=VALUE,...", key=name, remedy=f"write {place}:PARAMETER=VALUE")
    return place, values


def name_suffix(values: Mapping[str, str]) -> str:
    """What the full name of an environment ends with: every parameter with its value, in the order of its file."""
    return ":" + ",".join(f"{name}={value}" for name, value in values.items()) if values else ""


def with_values(
    raw: Mapping[str, Any], given: Mapping[str, str], *, file: Path
) -> tuple[dict[str, Any], dict[str, str]]:
    """The content of an environment's file with the values of its parameters in place, and these values.

    Raises:
        ConfigError: the file does not declare a parameter that is given or used, or a value is none of its choices.
    """
    raw = dict(raw)
    declared = validate(_Declared, {"parameters": raw.pop("parameters", {})}, file=file).parameters
    for name, value in given.items():
        if name not in declared:
            remedy = near(name, declared, "parameters") if declared else "leave it out"
            raise ConfigError(f"no parameter {name!r}", file=file, key="parameters", remedy=remedy)
        if value not in (choices := declared[name].choices):
            raise ConfigError(
                f"no value {value!r}", file=file, key=f"parameters.{name}", remedy=f"choices: {', '.join(choices)}"
            )
    values = {name: given.get(name, each.default) for name, each in declared.items()}
    filled = {key: expand(value, file=file, key=key, parameters=values) for key, value in raw.items()}
    for key in _OF_ALL_VALUES:
        if filled.get(key) != raw.get(key):
            raise ConfigError("depends on a parameter", file=file, key=key, remedy="write an environment of its own")
    return filled, values
