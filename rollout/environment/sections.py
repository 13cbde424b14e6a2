"""Sections of an environment's file that bound and shape its trajectories; traces and trainers read them as well."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from mcp_rollout.gateway.errors import InvalidValue
from mcp_rollout.rollout.types import MOST_CALLS


class Section(BaseModel):
    """One section of an environment's YAML file: immutable, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Keep(StrEnum):
    """The part of a long result that is kept."""

    HEAD = "head"
    TAIL = "tail"
    BOTH = "both"


class CutConfig(Section):
    """How much of a tool result enters the context. The trace keeps the whole result."""

    max_tokens: int | None = Field(default=None, ge=16)
    """In tokens of the policy's tokenizer, including the marker of the cut; None disables cutting."""
    keep: Keep = Keep.BOTH
    """Which part of a result stays."""


class CutRules(CutConfig):
    """How results are cut when they enter the context: a rule for all, and rules for single tools."""

    tools: dict[str, CutConfig] = Field(default_factory=dict)
    """By exposed tool name or a glob of it; the first match applies."""


class LimitsConfig(Section):
    """An environment's bounds on one trajectory. Where one is None, the trainer's value applies, see `Limits.of`."""

    assistant_turns: int | None = Field(default=None, ge=1)
    """Generations of the policy."""
    user_turns: int | None = Field(default=None, ge=1)
    """Replies of the user."""
    turns_per_user_message: int | None = Field(default=None, ge=1)
    """Assistant turns that one user message may take: tool calls, and the message that answers the user."""
    tool_calls: int | None = Field(default=None, ge=1)
    """Calls of tools, over all turns."""
    parallel_calls: int = Field(default=16, ge=1, le=MOST_CALLS)
    """Tool calls of one turn that are sent; each further call is answered with an error."""
    tokens_per_turn: int | None = Field(default=None, ge=1)
    """Sampled tokens of one turn."""
    wall_clock_s: float = Field(default=1800.0, gt=0)
    """Counted from the moment the lease is granted."""
    attempts: int = Field(default=1, ge=1)
    """How often a trajectory is rolled out at most, from its row, where its world is lost."""
    agent_close_timeout_s: float = Field(default=10.0, gt=0)
    """How long an agent may go on once its trajectory has ended; then it is stopped, and the trajectory withdrawn."""
    tell_budget: bool = False
    """Whether tool results and user messages end with a line that states the remaining budget."""


class ThinkingLoss(StrEnum):
    KEEP = "keep"
    MASK = "mask"


class ThinkingReward(StrEnum):
    INCLUDE = "include"
    STRIP = "strip"


class ThinkingContext(StrEnum):
    KEEP = "keep"
    DROP_PREVIOUS = "drop_previous"
    """Each new user message drops the thinking before it from the context, as the chat templates of Qwen3 and other
    models do. Thinking between the tool calls that answer one user message stays."""


class ThinkingConfig(Section):
    """How thinking tokens are treated. The trace always contains them."""

    loss: ThinkingLoss = ThinkingLoss.KEEP
    """Whether thinking tokens are in the loss."""
    reward: ThinkingReward = ThinkingReward.STRIP
    """Whether the reward sees the thinking."""
    context: ThinkingContext = ThinkingContext.KEEP
    """Whether earlier thinking stays in the context."""
    tokens_per_turn: int | None = Field(default=None, ge=1)
    """Thinking budget: a turn that is still thinking after this many tokens has its thought closed and continues."""


class AgentConfig(Section):
    """The class that takes the turns of a trajectory, and its arguments; a plain string is short for `{use: ...}`."""

    use: str
    """`package.module:Class`, a class with the method `play` of `rollout.loop.agent.Agent`."""
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any], alias="with")
    """Keyword arguments of the class. Traces record them."""

    @field_validator("use")
    @classmethod
    def _names_a_class(cls, value: str) -> str:
        if not re.fullmatch(r"[\w.]+:\w+", value):
            raise InvalidValue("names no class", "write package.module:Class")
        return value


class FilterAction(StrEnum):
    """What a filter does with a turn it matches."""

    MARK = "mark"
    """Record a mark in the trace."""
    MASK = "mask"
    """Mask the turn's tokens from the loss."""
    MASK_TRAJECTORY = "mask_trajectory"
    """Mask all of the trajectory's tokens from the loss (SimpleTIR); its reward still counts in its group."""
    PENALISE = "penalise"
    """Subtract `penalty` from the reward."""
    END = "end"
    """End the trajectory before the turn acts, and score it."""


class FilterConfig(Section):
    """One filter's action."""

    action: FilterAction = FilterAction.MARK
    """What happens to a matching turn."""
    penalty: float = Field(default=0.1, gt=0, allow_inf_nan=False)
    """Subtracted once for each matching turn under the action `penalise`."""

    @model_validator(mode="after")
    def _penalty_is_used(self) -> Self:
        if "penalty" in self.model_fields_set and self.action is not FilterAction.PENALISE:
            raise InvalidValue(f"has a penalty, which `action: {self.action}` does not use", "write action: penalise")
        return self


class RepeatedCallsConfig(FilterConfig):
    """Matches turns that repeat a call with the same arguments."""

    times: int = Field(default=3, ge=2)
    """The occurrence from which on the call matches; the first call is number 1."""


class LongThinkingConfig(FilterConfig):
    """Matches turns that think too long."""

    tokens: int | None = Field(default=None, ge=1)
    """The most thinking tokens of a turn that does not match; None disables the filter."""

    @model_validator(mode="after")
    def _has_a_bound(self) -> Self:
        if self.tokens is None and "action" in self.model_fields_set:
            raise InvalidValue("matches no turn without tokens", "give the most thinking tokens of a turn")
        return self


class Overlong(StrEnum):
    """What becomes of a trajectory that a limit cut."""

    SCORE = "score"
    """It is scored and trained on as any other."""
    MASK = "mask"
    """All of its tokens leave the loss; its reward still counts in its group."""
    PENALISE = "penalise"
    """A penalty is subtracted from its reward."""


class OverlongConfig(Section):
    """Trajectories that a limit cut: of tokens, turns, user turns, calls or time."""

    action: Overlong = Overlong.SCORE
    """What happens to them."""
    penalty: float = Field(default=0.1, gt=0, allow_inf_nan=False)
    """Subtracted from the reward under the action `penalise`."""
    last_share: float | None = Field(default=None, gt=0, le=1)
    """Under `penalise`, the last share of the token limit, over which the penalty grows from 0 to the whole, as in DAPO
    (arXiv 2503.14476); None penalises only what was cut."""

    @model_validator(mode="after")
    def _penalty_is_used(self) -> Self:
        given = sorted({"penalty", "last_share"} & self.model_fields_set)
        if given and self.action is not Overlong.PENALISE:
            raise InvalidValue(
                f"has a {given[0]}, which `action: {self.action}` does not use", "write action: penalise"
            )
        return self


class FiltersConfig(Section):
    """The filters of turns and of whole trajectories; a plain string is short for `{action: ...}`."""

    void: FilterConfig = FilterConfig()
    """Matches turns with neither a readable call nor an answer: empty, cut, broken or repeated text."""
    repeated_calls: RepeatedCallsConfig = RepeatedCallsConfig()
    """Matches turns that repeat a call."""
    long_thinking: LongThinkingConfig = LongThinkingConfig()
    """Matches turns that think too long."""
    overlong: OverlongConfig = OverlongConfig()
    """Matches trajectories that a limit cut."""

    @field_validator("*", mode="before")
    @classmethod
    def _accept_a_plain_action(cls, value: Any) -> Any:
        return {"action": value} if isinstance(value, str) else value


class Strategy(StrEnum):
    """How the trajectories of a group are rolled out, and what of them is one training sample."""

    CHAIN = "chain"
    """Each trajectory from the beginning to the end, in a context that grows."""
    TREE = "tree"
    """Some trajectories branch off turns of others, with which they share their beginning."""
    SINGLE_TURN = "single_turn"
    """Each turn is generated from a reduced history, and is a separate training sample."""
    COMPACT = "compact"
    """A chain whose context, when it is full, is replaced by the policy's summary of it and the last turns."""


class BranchAt(StrEnum):
    """Which turn of a root a branch samples again. The first turn is never one: nothing would be shared."""

    UNIFORM = "uniform"
    """Any turn of the finished root but the first, each with the same chance."""
    FIRST_TURNS = "first_turns"
    """One of the turns 1 to `first_turns`, counted from 0; the root may still be running."""
    ENTROPY = "entropy"
    """The turns of the finished root whose sampled tokens had the highest mean surprisal, one for each branch."""


class TreeConfig(Section):
    """The strategy `tree`."""

    roots: int = Field(default=2, ge=1)
    """Trajectories of a group that begin as chains; the others branch off them."""
    branch_at: BranchAt = BranchAt.UNIFORM
    """Which turns are branched at."""
    first_turns: int = Field(default=2, ge=1)
    """With `branch_at: first_turns`, the last turn that can be branched at."""
    restore: bool = True
    """Whether the world of a branch comes from snapshots where all servers with state can take and restore them; else
    the recorded calls are replayed."""
    wait_timeout_s: float = Field(default=7200.0, gt=0)
    """How long a branch waits for its root, without a lease. Then it is rolled out as a chain."""


class ObservationsConfig(CutRules):
    """How much of an earlier observation (a tool result or a user message) stays in the history."""

    max_tokens: int | None = Field(default=256, ge=16)


class SingleTurnConfig(Section):
    """The strategy `single_turn`: system message, task, and the history reduced to calls and observations."""

    history_tokens: int = Field(default=2048, ge=64)
    """Most tokens of a turn's prompt beyond the opening prompt. The oldest turns are left out where they do not fit."""
    observations: ObservationsConfig = ObservationsConfig()
    """Cuts all observations but those of the last turn, which the environment's `results` cut."""


BYTES_PER_TOKEN = 4
"""What a token of compaction counts as where lengths are in bytes."""


class SummaryLoss(StrEnum):
    TRAIN = "train"
    MASK = "mask"


class CompactConfig(Section):
    """The strategy `compact`."""

    at_tokens: int = Field(default=6144, ge=256)
    """The context is compacted before a turn that would begin with more tokens than this, opening prompt included."""
    keep_turns: int = Field(default=2, ge=0)
    """The last turns, which follow the summary as they were sampled; fewer where they would fill the context again."""
    summary_tokens: int = Field(default=1024, ge=0)
    """Most tokens of a summary, thinking included. With 0 there is none, and the oldest turns are cut."""
    summary_loss: SummaryLoss = SummaryLoss.TRAIN
    """Whether summaries are in the loss."""
    instruction: str = Field(
        default="Your context is full. Write a summary, from which alone, with the last turns, you will go on: what is "
        "asked, each fact, name, number and result that is still needed, word for word, what is done, and what is left "
        "to do. Write text in at most {tokens} tokens, and call no tool.",
        min_length=1,
        max_length=4096,
    )
    """The message that asks for the summary, at most 4,096 characters. `{tokens}` in it stands for `summary_tokens`."""

    @property
    def request(self) -> str:
        return self.instruction.replace("{tokens}", str(self.summary_tokens))

    @property
    def in_bytes(self) -> CompactConfig:
        """For a context that is counted in bytes."""
        update = {name: BYTES_PER_TOKEN * getattr(self, name) for name in ("at_tokens", "summary_tokens")}
        return self.model_copy(update=update | {"instruction": self.request})


class StrategyConfig(Section):
    """How a group is rolled out; a plain string is short for `{use: ...}`.

    Options of a strategy that is not used are refused: with `tree` and without `use`, chains would be rolled out.
    """

    use: Strategy = Strategy.CHAIN
    """The strategy."""
    tree: TreeConfig = TreeConfig()
    """Settings of `tree`."""
    single_turn: SingleTurnConfig = SingleTurnConfig()
    """Settings of `single_turn`."""
    compact: CompactConfig = CompactConfig()
    """Settings of `compact`."""

    @field_validator("tree", "single_turn", "compact")
    @classmethod
    def _is_used(cls, options: Section, info: ValidationInfo) -> Section:
        used = info.data.get("use")  # None where its own value is refused; defaults of the options are not validated
        if used is not None and used != info.field_name:
            problem = f"has options of a strategy that is not used; the strategy is {used.value}"
            raise InvalidValue(problem, f"add use: {info.field_name}, or remove them")
        return options
