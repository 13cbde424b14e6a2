"""Keys of an environment that a trainer's section or a command's option gives in place of those of its file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from mcp_rollout.gateway.config.pydantic_errors import validate
from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.environment.config import Environment

_OF_THE_FILE = frozenset({"name", "parameters", "file", "servers"})
"""What a row's name of the environment stands for; locks and worlds are compared by it."""


def overridden(environment: Environment, given: Mapping[str, Any], *, key: str) -> Environment:
    """Return `environment` with the keys of `given` over those of its file, validated as the file is.

    Mappings are merged key by key; any other value replaces the file's, and null drops it. Where a section's `use`
    changes, the file's other keys of that section are dropped too.

    Args:
        key: Where `given` stands, for errors.

    Raises:
        ConfigError: an unknown key, a value out of range, or an option without an effect, as in the file.

    Example:
        `overridden(environment, {"strategy": {"use": "tree", "tree": {"roots": 4}}}, key="mcp.environment")`
    """
    if not given:
        return environment
    for name in given.keys() & _OF_THE_FILE:
        remedy = f"change it in {environment.file}"
        raise ConfigError("is the file's alone", key=f"{key}.{name}", remedy=remedy)
    own = {name: getattr(environment, name) for name in environment.model_fields_set}
    own |= environment.model_dump(include=set(given), exclude_unset=True, by_alias=True)
    for name in given:
        use = _section(given, name).get("use")
        if use is not None and use != _section(own, name).get("use"):
            own[name] = {}
    return validate(Environment, _merged(own, given), file=None, key=key)


def _merged(own: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    merged = {name: value for name, value in own.items() if given.get(name, ...) is not None}
    for name, value in given.items():
        if isinstance(value, Mapping):
            merged[name] = _merged(_section(merged, name), _section(given, name))
        elif value is not None:
            merged[name] = value
    return merged


def _section(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The mapping of this name; an empty one where there is none."""
    value = values.get(name)
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
