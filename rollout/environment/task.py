"""Typed dataset rows: the task of a trajectory, its origin, and the sampling seeds derived from that."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Annotated, Any, Self, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from mcp_rollout.gateway.config.pydantic_errors import validate
from mcp_rollout.gateway.errors import ConfigError, Faults, InvalidValue, one_error
from mcp_rollout.rollout.environment.matching import Match, compare, unusable
from mcp_rollout.rollout.types import Message

SPLITS = ("train", "test")
ALL = "all"
"""Both splits, one after the other: a published result covers all of a benchmark's tasks."""
REMEDY = "write rows with `mcp-rollout data`"
MOST_CALLS = 64
"""Calls that prepare or examine one task's world."""


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


class WorldCall(BaseModel):
    """A call that the harness makes in a task's world, beside those of the policy, and what it must return."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str = Field(min_length=1, max_length=200)
    """The tool's name as the policy would see it."""
    arguments: dict[str, Any] = {}
    returns: Any = None
    """What the tool's text is compared with; None accepts any."""
    match: Match | None = Field(default=None, strict=False)
    """How it is compared; by default as JSON where `returns` is an object or a list, else as `Match.TEXT`."""

    @property
    def how(self) -> Match:
        return self.match or (Match.JSON if isinstance(self.returns, dict | list) else Match.TEXT)

    @property
    def expected(self) -> str | None:
        """`returns` as text; None where anything may return."""
        return None if self.returns is None else as_text(self.returns)

    @model_validator(mode="after")
    def _can_hold(self) -> Self:
        if self.expected is not None and (problem := unusable(self.how, self.expected)):
            raise InvalidValue(f"returns {problem[0]}", problem[1])
        return self

    async def is_met_by(self, text: str, *, timeout_s: float) -> bool:
        """Whether the tool's text is what the call must return; `timeout_s` as for `compare`."""
        return self.expected is None or await compare(self.how, text, self.expected, timeout_s=timeout_s)


class Check(WorldCall):
    """A call after the end of a trajectory."""

    error: bool = False
    """Whether the tool must answer with an error, such as for a file that is to be gone."""


def as_text(value: Any) -> str:
    """A value of a row as the text that answers are compared with: a string as it is, another value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def from_json(text: str, *, remedy: str) -> Any:
    """The value of a JSON text within a row. Raises InvalidValue: it is not JSON, or has half of a surrogate pair."""
    try:
        value: Any = json.loads(text)
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode()  # refuses half of a surrogate pair
    except (ValueError, RecursionError) as error:
        raise InvalidValue("is not JSON", remedy) from error
    return value


def _calls(value: Any) -> Any:
    """The calls of a list or of its JSON text. A Parquet file has text: its nested objects are filled up with nulls."""
    listed = from_json(value, remedy='write [{"name": TOOL, "arguments": {...}}]') if isinstance(value, str) else value
    return () if listed is None else tuple(cast("list[Any]", listed)) if isinstance(listed, list) else listed


Calls = Annotated[tuple[WorldCall, ...], BeforeValidator(_calls), Field(max_length=MOST_CALLS)]
Checks = Annotated[tuple[Check, ...], BeforeValidator(_calls), Field(max_length=MOST_CALLS)]


class VerlColumns(BaseModel):
    """What verl's reward functions take of a row, as the row has it."""

    model_config = ConfigDict(frozen=True)

    data_source: str = ""
    ground_truth: Any = None
    extra_info: dict[str, Any] = {}


def question(messages: Iterable[Message]) -> str:
    """What a prompt asks: the texts of all messages but the system's, without regard to case and spaces."""
    texts = [str(message["content"]) for message in messages if message["role"] != "system"]
    return "\n".join(" ".join(text.casefold().split()) for text in texts)


def _is_message(message: Message) -> Message:
    if not isinstance(message.get("role"), str) or "content" not in message:
        raise ValueError("a chat message has a role and content")
    # A column of messages has each key of any of them, with null where a message has none.
    return {name: value for name, value in message.items() if value is not None or name == "content"}


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
    setup: Calls = ()
    """Calls that prepare the world, before the first turn. The policy sees neither them nor their results."""
    check: Checks = ()
    """Calls that examine the world after the last turn."""
    verl: VerlColumns | None = None
    """The row's own columns for a reward function; None where it has none but those of this library."""
    where: str = Field(default="", exclude=True, repr=False)
    """The file and the line of the task, for messages; empty for rows of a dataset."""

    @property
    def world_tools(self) -> frozenset[str]:
        """Exposed names of the tools that the harness calls for this task."""
        return frozenset(call.name for call in (*self.setup, *self.check))

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
        truth = _ground_truth(row.get("reward_model"))
        fields["answer"] = None if truth is None or truth == "" else as_text(truth)
        fields["verl"] = _verl_columns(row, truth, environment=fields.get("environment"))
        with faults.collected():
            task = validate(cls, fields, file=None, key="extra_info.mcp")
            if not faults:
                return task
        raise one_error(faults)


UNREADABLE = Task(environment="-", task="", seed=0, prompt=({"role": "user", "content": ""},))
"""The task in the trace of a row that cannot be parsed."""


def _ground_truth(reward_model: Any) -> Any:
    """The ground truth as the row has it. Rows of other projects have objects there for their own reward function."""
    if not isinstance(reward_model, Mapping):
        return None
    return plain(cast("Mapping[str, Any]", reward_model).get("ground_truth"))


def _verl_columns(row: Mapping[str, Any], truth: Any, *, environment: Any) -> VerlColumns | None:
    source, extra = row.get("data_source"), cast("Mapping[str, Any]", row["extra_info"])
    given = plain({name: value for name, value in extra.items() if name not in ("mcp", "tools_kwargs")})
    has_more = any(value is not None for name, value in given.items() if name not in ("index", "split"))
    if source in (None, environment) and not has_more and not isinstance(truth, dict | list):
        return None
    return VerlColumns(data_source=str(source or ""), ground_truth=truth, extra_info=given)


def plain(value: Any) -> Any:
    """A value of a dataset as JSON has it: verl's dataset passes arrays, and numbers of numpy."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in cast("list[Any]", value)]
    if isinstance(value, bytes):  # a text in Parquet whose writer did not say that it is one
        return value.decode(errors="backslashreplace")
    return value if isinstance(value, str | int | float | None) else str(value)


def _listed(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value
