"""Configuration of how a group of trajectories is rolled out."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field, ValidationInfo, field_validator

from gateway.errors import InvalidValue
from rollout.environment.results_config import CutRules
from rollout.environment.reward_config import Section


class Strategy(StrEnum):
    """How the trajectories of a group are rolled out, and what of them is one training sample."""

    CHAIN = "chain"
    """Each trajectory from the beginning to the end, in a context that grows."""
    TREE = "tree"
    """Some trajectories branch off turns of others, with which they share their beginning."""
    SINGLE_TURN = "single_turn"
    """Each turn is generated from a reduced history, and is a separate training sample."""


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


class StrategyConfig(Section):
    """How a group is rolled out; a plain string is short for `{use: ...}`.

    Options of a strategy that is not used are refused: with `tree` and without `use`, chains would be rolled out. A
    trainer's override may have them, since it is only a part of the section.
    """

    use: Strategy = Strategy.CHAIN
    """The strategy."""
    tree: TreeConfig = TreeConfig()
    """Settings of `tree`."""
    single_turn: SingleTurnConfig = SingleTurnConfig()
    """Settings of `single_turn`."""

    @field_validator("tree", "single_turn")
    @classmethod
    def _is_used(cls, options: Section, info: ValidationInfo) -> Section:
        used = info.data.get("use")  # None where its own value is refused; defaults of the options are not validated
        if used is not None and used != info.field_name:
            problem = f"has options of a strategy that is not used; the strategy is {used.value}"
            raise InvalidValue(problem, f"add use: {info.field_name}, or remove them")
        return options
