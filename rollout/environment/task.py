"""Typed dataset rows: the task of a trajectory, its origin, and the sampling seeds derived from that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Annotated, Any, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from gateway.config.pydantic_errors import validate
from gateway.errors import ConfigError, Faults, one_error
from rollout.types import Message

REMEDY = "write rows with `mcp-rollout data`"


class Origin(BaseModel):
    """The row and run that a trajectory belongs to. Identifies it, and seeds its sampling."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    row: int = 0
    """Index of the row in its dataset."""
    sample: int = 0
    """Number of the trajectory among the siblings of its row, from 0."""
    step: int = -1
    """The trainer's global step, -1 outside training."""
    validate_: bool = Field(default=False, alias="validate")
    uid: str = ""
    """The trainer's id of the prompt group."""
    split: str = ""
    """The dataset's split, where it is known."""
    attempt: int = 0
    """Number of the attempt at this trajectory, from 0. The last one counts."""
    parent: str | None = None
    """The trajectory whose beginning this one shares; the record has its own ids from the beginning all the same."""
    branched_at: int | None = None
    """Number of the ids that are shared with `parent`, prompt included."""
    engine: str = ""
    """What generated the trajectory: `verl`, or an engine of `mcp-rollout run`."""

    @property
    def identity(self) -> dict[str, str | int | bool]:
        """What distinguishes the trajectories of a task, where it is not the default. Cassettes find leases by it."""
        found: dict[str, str | int | bool] = {"sample": self.sample, "attempt": self.attempt}
        if self.step >= 0:
            found |= {"step": self.step, "validate": self.validate_}
        return found


def sampling_seed(origin: Origin, turn: int, part: int = 0, *, base: int = 0) -> int:
    """A seed that depends only on row, sample, step and turn (verl's own ids are random).

    Args:
        origin: the trajectory.
        turn: number of the turn, from 0.
        part: number of the generation within the turn, from 0.
        base: seed of the run.
    """
    seed = base
    for number in (origin.row, origin.sample, origin.step, turn, *([part] if part else [])):
        seed = (seed * 1_000_003 + number + 1) % (2**31 - 1)
    return seed


class TurnSeeds:
    """The seeds of a trajectory's generations, in order."""

    def __init__(self, origin: Origin, *, base: int = 0) -> None:
        self._origin, self._base = origin, base
        self._turn, self._part = -1, 0

    def next(self, turn: int) -> int:
        """The seed of the next generation of `turn`; a turn with a thinking budget can have two."""
        self._turn, self._part = turn, self._part + 1 if turn == self._turn else 0
        return sampling_seed(self._origin, turn, self._part, base=self._base)


def _is_message(message: Message) -> Message:
    if not isinstance(message.get("role"), str) or "content" not in message:
        raise ValueError("a chat message has a role and content")
    return message


class Task(BaseModel):
    """The task of a trajectory: `extra_info.mcp` of its row, and the prompt."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    environment: str = Field(min_length=1)
    task: str
    seed: int
    tools: tuple[str, ...] | None = None
    """Exposed names of the tools that the policy may use; None allows all."""
    later_tools: Annotated[tuple[str, ...], BeforeValidator(lambda names: () if names is None else names)] = ()
    """Exposed names of the tools that are in no prompt and refused until the user's reply names them."""
    prompt: tuple[Annotated[Message, AfterValidator(_is_message)], ...] = Field(min_length=1)
    answer: str | None = None
    """The row's `reward_model.ground_truth`, for rewards that compare with it. The policy never sees it."""

    @property
    def callable_tools(self) -> tuple[str, ...] | None:
        """Exposed names of the tools that the policy may use at some time; None allows all."""
        return None if self.tools is None else tuple(dict.fromkeys((*self.tools, *self.later_tools)))

    def shows(self, tool: str) -> bool:
        """Whether the prompt has the schema of this tool."""
        return tool not in self.later_tools and (self.tools is None or tool in self.tools)

    def shown(self, schemas: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Those of the OpenAI-style tool schemas that are in the prompt."""
        # Sets, since a row may name a thousand tools.
        later, tools = frozenset(self.later_tools), None if self.tools is None else frozenset(self.tools)
        return [
            schema
            for schema in schemas
            if (name := schema["function"]["name"]) not in later and (tools is None or name in tools)
        ]

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Task:
        """Parse a row of verl's dataset (`raw_prompt`) or of a Parquet file (`prompt`).

        Raises:
            ConfigError: the row lacks `extra_info.mcp`, or a field is invalid. `extra_info.index` may be missing, but
                verl hands it to the agent loop as the row's number.
        """
        faults = Faults()
        extra: Any = row.get("extra_info")
        mcp: Any = cast("Mapping[str, Any]", extra).get("mcp") if isinstance(extra, Mapping) else None
        if not isinstance(mcp, Mapping):
            raise ConfigError("a row for mcp_agent needs this mapping", key="extra_info.mcp", remedy=REMEDY)
        index: Any = cast("Mapping[str, Any]", extra).get("index")
        if not isinstance(index, Integral | None):
            problem, remedy = f"is not an integer: {index!r}", f"number the rows from 0; {REMEDY}"
            faults.append(ConfigError(problem, key="extra_info.index", remedy=remedy))
        fields = dict(cast("Mapping[str, Any]", mcp))
        # verl's dataset sometimes passes lists as arrays. The model rejects whatever is not a list.
        fields["tools"], fields["later_tools"] = _listed(fields.get("tools")), _listed(fields.get("later_tools"))
        fields["prompt"] = _listed(row.get("raw_prompt", row.get("prompt")))
        if not isinstance(fields["prompt"], list):
            remedy = f"a list of {{role, content}}; {REMEDY}"
            faults.append(ConfigError("is not a list of chat messages", key="prompt", remedy=remedy))
            fields["prompt"] = UNREADABLE.prompt
        elif not fields["prompt"]:
            faults.append(ConfigError("the prompt has no messages", key="prompt", remedy=REMEDY))
            fields["prompt"] = UNREADABLE.prompt
        fields["answer"] = _ground_truth(row.get("reward_model"))
        with faults.collected():
            task = validate(cls, fields, file=None, key="extra_info.mcp")
            if not faults:
                return task
        raise one_error(faults)


UNREADABLE = Task(environment="-", task="", seed=0, prompt=({"role": "user", "content": ""},))
"""The task in the trace of a row that cannot be parsed."""


def _ground_truth(reward_model: Any) -> str | None:
    """The ground truth as text. Rows of other projects have numbers there, or objects for their own reward function."""
    if not isinstance(reward_model, Mapping):
        return None
    truth = cast("Mapping[str, Any]", reward_model).get("ground_truth")
    return str(truth) if isinstance(truth, str | int | float) and truth != "" else None


def _listed(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value
