"""A dataset row, parsed once at the door."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from gateway.config.models import validate
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
    engine: str = ""
    """What generated: `verl`, or an engine of `mcp-rollout run`."""


def sampling_seed(origin: Origin, turn: int, part: int = 0, *, base: int = 0) -> int:
    """A seed that is the same for the same row, sibling, step and turn: verl's own ids are random.

    Args:
        part: Which generation of the turn this is, from 0.
        base: What sets one run's seeds apart from another's.
    """
    seed = base
    for number in (origin.row, origin.sample, origin.step, turn, *([part] if part else [])):
        seed = (seed * 1_000_003 + number + 1) % (2**31 - 1)
    return seed


class TurnSeeds:
    """The seed of each generation of a trajectory, in order."""

    def __init__(self, origin: Origin, *, base: int = 0) -> None:
        self._origin, self._base = origin, base
        self._turn, self._part = -1, 0

    def next(self, turn: int) -> int:
        """Of this turn's first generation, or, where it is asked for again, of the one that goes on."""
        self._turn, self._part = turn, self._part + 1 if turn == self._turn else 0
        return sampling_seed(self._origin, turn, self._part, base=self._base)


def _is_message(message: Message) -> Message:
    if not isinstance(message.get("role"), str) or "content" not in message:
        raise ValueError("a chat message has a role and content")
    return message


class Task(BaseModel):
    """What a trajectory is about: `extra_info.mcp` of a row, and its prompt."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    environment: str = Field(min_length=1)
    task: str
    seed: int
    tools: tuple[str, ...] | None = None
    """Exposed names of the tools the policy may use; all of them where it is None."""
    prompt: tuple[Annotated[Message, AfterValidator(_is_message)], ...] = Field(min_length=1)
    answer: str | None = None
    """The row's `reward_model.ground_truth`, for rewards that compare with it; never shown to the policy."""

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
        # verl's dataset hands lists over as arrays now and then; what is no list at all is for the model to refuse.
        fields["tools"] = _listed(fields.get("tools"))
        fields["prompt"] = _listed(row.get("raw_prompt", row.get("prompt")))
        if not isinstance(fields["prompt"], list):
            remedy = f"a list of {{role, content}}; {REMEDY}"
            raise ConfigError("is no list of chat messages", file=where, key="prompt", remedy=remedy)
        fields["answer"] = _ground_truth(row.get("reward_model"))
        return validate(cls, fields, file=where, key="extra_info.mcp")


def _ground_truth(reward_model: Any) -> str | None:
    """Other people's rows hold numbers here, or things that only their own reward function reads."""
    truth: Any = (
        cast("Mapping[str, Any]", reward_model).get("ground_truth") if isinstance(reward_model, Mapping) else None
    )
    return str(truth) if isinstance(truth, str | int | float) and truth != "" else None


def _listed(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value
