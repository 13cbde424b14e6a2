"""What an environment's reward is made of, as its YAML file states it."""

from __future__ import annotations

import re
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator


class Component(StrEnum):
    """What a reward can be made of, beside the parts of a server's score. All but the first two are in [0, 1]."""

    SCORE = "score"
    """What the server's score tool says."""
    TURNS = "turns"
    """Sum of the rewards that trusted servers gave for single turns."""
    EXACT_MATCH = "exact_match"
    """1 where the policy's last answer is the row's ground truth, else 0."""
    VALID_CALLS = "valid_calls"
    """Share of the calls that could be sent: readable, of a known tool, with arguments that fit its schema."""
    FORMAT = "format"
    """Share of the turns that ended by themselves and wrote no call that cannot be read."""
    BREVITY = "brevity"
    """1 up to a number of sampled tokens, falling to 0 at another."""


UNLESS_SAID = (Component.SCORE, Component.TURNS)
"""What weighs 1 where the file does not name it; all else weighs nothing, and is not computed."""
OURS = tuple(component for component in Component if component not in UNLESS_SAID)


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BrevityConfig(_Section):
    """Bounds of the component `brevity`, in sampled tokens of the whole trajectory."""

    full_until: int = Field(ge=0)
    none_from: int = Field(ge=1)

    @model_validator(mode="after")
    def _falls(self) -> BrevityConfig:
        if self.none_from <= self.full_until:
            raise ValueError("none_from must be above full_until")
        return self


class RewardConfig(_Section):
    """Whose score ends a trajectory, and what its reward is made of: the weighted sum of its components."""

    server: str | None = None
    """The server whose score tool judges the trajectory."""
    parts: tuple[str, ...] = ()
    """Names of the score's parts; they reach verl as `reward_extra_info`, the same keys for every outcome."""
    weights: dict[str, float] = {}
    """By component or part; a `score` and the turns' rewards weigh 1 unless it says otherwise, all else nothing."""
    answer_pattern: str | None = None
    """Regular expression with one group: where in the last answer the component `exact_match` looks; its last match
    counts. None takes the whole answer."""
    brevity: BrevityConfig | None = None

    @field_validator("parts")
    @classmethod
    def _names_are_free(cls, parts: tuple[str, ...]) -> tuple[str, ...]:
        """verl's validation gives some names a meaning of their own, and so do we."""
        own = {"reward", "acc", *Component}
        if taken := [part for part in parts if part in own or part.startswith("mcp_")]:
            raise ValueError(f"{', '.join(taken)}: taken, choose another name")
        return parts

    @field_validator("answer_pattern")
    @classmethod
    def _has_one_group(cls, pattern: str | None) -> str | None:
        if pattern is None:
            return None
        try:
            groups = re.compile(pattern).groups
        except re.error as error:
            raise ValueError(f"is no regular expression: {error}") from error
        if groups != 1:
            raise ValueError(f"has {groups} groups; put the answer, and nothing else, into one")
        return pattern

    @model_validator(mode="after")
    def _weighs_what_there_is(self) -> RewardConfig:
        known = [*Component, *self.parts]
        if unknown := [name for name in self.weights if name not in known]:
            raise ValueError(f"weights names {', '.join(unknown)}; there are {', '.join(known)}")
        if Component.BREVITY in self.weights and self.brevity is None:
            raise ValueError("weights names brevity, which needs brevity: {full_until: TOKENS, none_from: TOKENS}")
        return self

    @property
    def ours(self) -> tuple[Component, ...]:
        """Components that are computed here, from the trace."""
        return tuple(component for component in OURS if component in self.weights)

    @property
    def reported(self) -> tuple[str, ...]:
        """Names under which a reward's parts are reported."""
        return (*self.parts, *self.ours)

    def weight(self, name: str) -> float:
        """How much a component, or a part of the server's score, counts."""
        return self.weights.get(name, 1.0 if name in UNLESS_SAID else 0.0)
