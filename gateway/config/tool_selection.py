"""The `tools` section of a server's entry: which tools the policy sees, their names, and their fixed arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Self, cast

from pydantic import BaseModel, ConfigDict, field_validator, model_validator

from mcp_rollout.gateway.errors import InvalidValue, InvalidValues


class ToolOverride(BaseModel):
    """Changes to one tool, or to all tools that a glob matches, as the policy sees them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str | None = None
    """A new name."""
    description: str | None = None
    """A new description."""
    fixed: dict[str, Any] = {}
    """Arguments that the gateway sends and the policy never sees; `${trajectory.id}`, `${trajectory.seed}` and
    `${lease.dir}` in their strings are expanded for each trajectory."""

    @field_validator("name")
    @classmethod
    def _name_is_one(cls, name: str | None) -> str | None:
        if name is not None and not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name):
            raise InvalidValue("a tool's name has 1 to 64 letters, digits, _ . and -", "choose another")
        return name


class ToolSelection(BaseModel):
    """The `tools` of a server's entry; a bare list means `allow`.

    Patterns are names or globs (`*`, `?`, `[...]`) over the server's own names, case-sensitive. Harness tools are never
    shown and need no entry.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    allow: tuple[str, ...] | None = None
    """None means all."""
    deny: tuple[str, ...] = ()
    """Wins over `allow`."""
    prefix: bool = False
    """Whether these tools are always `server__tool`; otherwise only where two servers share a name."""
    change: dict[str, ToolOverride] = {}
    """By name or glob; if several match a tool, later ones win."""

    @model_validator(mode="before")
    @classmethod
    def _list_is_allow(cls, data: Any) -> Any:
        if data is None:
            return {}
        named = isinstance(data, Mapping | cls)
        return cast("Any", data) if named else {"allow": data}

    @model_validator(mode="after")
    def _names_are_for_one(self) -> Self:
        if faults := [
            InvalidValue(f"change.{pattern}: only `fixed` can be given for several tools at once", "name one tool")
            for pattern, change in self.change.items()
            if is_glob(pattern) and (change.name or change.description is not None)
        ]:
            raise InvalidValues(faults)
        return self

    def shows(self, name: str) -> bool:
        """Whether the policy may see the server's tool of this name."""
        allowed = self.allow is None or any(matches(pattern, name) for pattern in self.allow)
        return allowed and not any(matches(pattern, name) for pattern in self.deny)


def is_glob(pattern: str) -> bool:
    return any(mark in pattern for mark in "*?[")


def matches(pattern: str, name: str) -> bool:
    return pattern == name or fnmatchcase(name, pattern)


TRAJECTORY_VARIABLES = frozenset({"trajectory.id", "trajectory.seed"})
_VARIABLE = re.compile(r"\$\{(trajectory\.id|trajectory\.seed|lease\.dir)\}")


def fill(value: Any, *, trajectory: str, seed: int, lease_dir: Path | None = None) -> Any:
    """An argument in one trajectory; the string `${trajectory.seed}` alone becomes a number.

    Args:
        lease_dir: of the trajectory; without one, `${lease.dir}` stays as it is.
    """
    if isinstance(value, str):
        if value == "${trajectory.seed}":
            return seed
        known = {"trajectory.id": trajectory, "trajectory.seed": str(seed)}
        known |= {} if lease_dir is None else {"lease.dir": str(lease_dir)}
        return _VARIABLE.sub(lambda match: known.get(match.group(1), match.group()), value)
    again = partial(fill, trajectory=trajectory, seed=seed, lease_dir=lease_dir)
    if isinstance(value, Mapping):
        return {name: again(inner) for name, inner in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list):
        return [again(inner) for inner in cast("list[Any]", value)]
    return value
