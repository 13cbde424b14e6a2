"""A dataset row, parsed once at the door."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field

from gateway.config import validate
from gateway.errors import ConfigError
from rollout.types import Message

REMEDY = "write rows with `mcp-rollout data`"


class Origin(BaseModel):
    """Which run of which row a trajectory is; enough to find it again and to seed its sampling."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    row: int = 0
    """Index of the row in its dataset."""
    sample: int = 0
    """Which of the row's sibling trajectories this is, from 0."""
    step: int = -1
    """The trainer's global step, -1 outside training."""
    validate_: bool = Field(default=False, alias="validate")
    uid: str = ""
    """The trainer's id of the prompt group."""


class Task(BaseModel):
    """What a trajectory is about: `extra_info.mcp` of a row, and its prompt."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    environment: str = Field(min_length=1)
    task: str
    seed: int
    tools: tuple[str, ...] | None = None
    """Exposed names of the tools the policy may use; all of them where it is None."""
    prompt: tuple[Message, ...] = Field(min_length=1)

    @classmethod
    def from_row(cls, row: Mapping[str, Any], *, where: str | None = None) -> Task:
        """Read a row as verl's dataset gives it (`raw_prompt`) or as the parquet file holds it (`prompt`).

        Raises:
            ConfigError: the row lacks `extra_info.mcp` or a field of it is wrong; `where` names file and row.
        """
        extra: Any = row.get("extra_info")
        mcp: Any = cast("Mapping[str, Any]", extra).get("mcp") if isinstance(extra, Mapping) else None
        if not isinstance(mcp, Mapping):
            raise ConfigError("a row for mcp_agent needs this mapping", file=where, key="extra_info.mcp", remedy=REMEDY)
        fields = dict(cast("Mapping[str, Any]", mcp))
        tools = fields.get("tools")
        fields["tools"] = None if tools is None else tuple(tools)
        prompt = row.get("raw_prompt", row.get("prompt"))
        fields["prompt"] = tuple(dict(message) for message in prompt) if prompt is not None else ()
        return validate(cls, fields, file=where, key="extra_info.mcp")
