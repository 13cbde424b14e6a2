"""Configuration of an environment's reward."""

from __future__ import annotations

import re
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator


class Section(BaseModel):
    """One section of an environment's YAML file: immutable, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Component(StrEnum):
    """Components of a reward, besides the parts of a server's score. All but the first two are in [0, 1]."""

    SCORE = "score"
    """The score that the server's score tool returns."""
    TURNS = "turns"
    """Sum of the per-turn rewards from trusted servers."""
    EXACT_MATCH = "exact_match"
    """1 if the policy's last answer equals the row's ground truth, else 0."""
    VALID_CALLS = "valid_calls"
    """Share of the calls that were valid: readable, to a known tool, with arguments that fit its schema."""
    FORMAT = "format"
    """Share of the turns that ended with the stop token and contain no unreadable call."""
    BREVITY = "brevity"
    """1 up to `full_until` sampled tokens, falling linearly to 0 at `none_from`."""


_FROM_SERVERS = (Component.SCORE, Component.TURNS)
"""Components with weight 1 by default. All others have weight 0 by default and are then not computed."""


class BrevityConfig(Section):
    """Bounds of the component `brevity`, in sampled tokens of the whole trajectory."""

    full_until: int = Field(ge=0)
    """Sampled tokens up to which the component is 1."""
    none_from: int = Field(ge=1)
    """Sampled tokens from which it is 0."""

    @model_validator(mode="after")
    def _falls(self) -> BrevityConfig:
        if self.none_from <= self.full_until:
            raise ValueError("none_from must be above full_until")
        return self


class RewardConfig(Section):
    """The reward of a trajectory: the weighted sum of its components."""

    server: str | None = None
    """The server whose tool with the role `score` scores the trajectory."""
    parts: tuple[str, ...] = ()
    """Names of the score's parts. verl gets them as `reward_extra_info`, the same keys for every outcome."""
    weights: dict[str, float] = {}
    """By component or part. The defaults are 1 for `score` and `turns`, and 0 for everything else."""
    answer_pattern: str | None = None
    """Regular expression with one group, which captures the part of the last answer that `exact_match` compares; the
    last match counts. None compares the whole answer."""
    brevity: BrevityConfig | None = None
    """Bounds of the component `brevity`."""

    @field_validator("parts")
    @classmethod
    def _names_are_free(cls, parts: tuple[str, ...]) -> tuple[str, ...]:
        reserved = {"reward", "acc", *Component}  # the first two by verl's validation
        if taken := [part for part in parts if part in reserved or part.startswith("mcp_")]:
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
            raise ValueError(f"is not a regular expression: {error}") from error
        if groups != 1:
            raise ValueError(f"has {groups} groups; put the answer, and nothing else, into one")
        return pattern

    @model_validator(mode="after")
    def _weights_name_components(self) -> RewardConfig:
        known = [*Component, *self.parts]
        if unknown := [name for name in self.weights if name not in known]:
            raise ValueError(f"weights names {', '.join(unknown)}; there are {', '.join(known)}")
        if Component.BREVITY in self.weights and self.brevity is None:
            raise ValueError("weights names brevity, which needs brevity: {full_until: TOKENS, none_from: TOKENS}")
        return self

    @property
    def computed(self) -> tuple[Component, ...]:
        """Weighted components that are computed from the trace."""
        return tuple(each for each in Component if each in self.weights and each not in _FROM_SERVERS)

    @property
    def reported(self) -> tuple[str, ...]:
        """Names of the reward parts in the training sample."""
        return (*self.parts, *self.computed)

    def weight(self, name: str) -> float:
        """The weight of a component or of a part of the server's score."""
        return self.weights.get(name, 1.0 if name in _FROM_SERVERS else 0.0)
