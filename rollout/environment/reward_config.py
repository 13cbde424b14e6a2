"""Configuration of an environment's reward."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from pydantic import Field, FiniteFloat, field_validator, model_validator

from mcp_rollout.gateway.config.calls import SamplingConfig
from mcp_rollout.rollout.environment.matching import Match
from mcp_rollout.rollout.environment.sections import Section


class Component(StrEnum):
    """Components of a reward, besides the parts of a server's score. All but the first two are in [0, 1]."""

    SCORE = "score"
    """The score that the server's score tool returns."""
    TURNS = "turns"
    """Sum of the per-turn rewards from trusted servers."""
    EXACT_MATCH = "exact_match"
    """1 if the policy's last answer is the row's ground truth, compared by `match`, else 0."""
    CHECKS = "checks"
    """Share of the row's checks that hold in the world at the end; 0 for a row without any."""
    SOLVED = "solved"
    """Share of what the row asks for that holds: its ground truth, as one demand, and each of its checks; 0 for a row
    without any."""
    VALID_CALLS = "valid_calls"
    """Share of the calls that were valid: readable, to a known tool, with arguments that fit its schema."""
    FORMAT = "format"
    """Share of the turns that ended with the stop token and contain no unreadable call."""
    BREVITY = "brevity"
    """1 up to `full_until` sampled tokens, falling linearly to 0 at `none_from`."""


CUSTOM_PART = "mcp_custom"
"""The component that the trainer's own reward function gives; only the trainer's section can weigh it."""
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


def _refuse_taken(names: Iterable[str]) -> None:
    """Raises ValueError for names of components, and for those that verl's validation or our metrics use."""
    reserved = {"reward", "acc", *Component}
    if taken := [name for name in names if name in reserved or name.startswith("mcp_")]:
        raise ValueError(f"{', '.join(taken)}: taken, choose another name")


class RubricConfig(Section):
    """Criteria by which a model judges a trajectory. Each is a component in [0, 1]."""

    criteria: dict[str, str] = Field(min_length=1)
    """By the component's name: what a trajectory must do for full marks."""
    endpoint: SamplingConfig | None = None
    """The model that judges; by default the environment's `sampling`."""
    votes: int = Field(default=1, ge=1, le=32)
    """Independent judgements, which are averaged; each costs one request of at most `endpoint.max_tokens`."""
    temperature: float | None = Field(default=None, ge=0)
    """Of the judging model; not 0 where there are several votes. None leaves it to the API."""

    @field_validator("criteria")
    @classmethod
    def _names_are_free(cls, criteria: dict[str, str]) -> dict[str, str]:
        _refuse_taken(criteria)
        return criteria

    @model_validator(mode="after")
    def _votes_differ(self) -> RubricConfig:
        if self.votes > 1 and self.temperature == 0:
            raise ValueError("several votes need a temperature above 0, or they are all the same")
        return self


class RewardConfig(Section):
    """The reward of a trajectory: the weighted sum of its components."""

    server: str | None = None
    """The server whose tool with the role `score` scores the trajectory."""
    parts: tuple[str, ...] = ()
    """Names of the score's parts. verl gets them as `reward_extra_info`, the same keys for every outcome."""
    weights: dict[str, FiniteFloat] = Field(default={})
    """By component or part. The defaults are 1 for `score` and `turns`, and 0 for everything else."""
    match: Match = Match.TEXT
    """How `exact_match` and `solved` compare the last answer with the row's ground truth."""
    answer_pattern: str | None = None
    """Regular expression with one group, which captures the part of the last answer that is compared; the last
    match counts. None compares the whole answer."""
    brevity: BrevityConfig | None = None
    """Bounds of the component `brevity`."""

    functions: dict[str, str] = Field(default={})
    """Python functions by the component's name: `MODULE:FUNCTION`, or `FILE.py:FUNCTION` beside the environment's file.
    Each takes the trace and the server's score, or verl's arguments of `compute_score`, and returns a number or awaits
    one."""
    function_timeout_s: float = Field(default=30.0, gt=0)
    """How long one function may take, and one comparison by `match: math`."""
    rubric: RubricConfig | None = None
    """What a model judges."""

    @field_validator("parts", "functions")
    @classmethod
    def _names_are_free(cls, names: Any) -> Any:
        _refuse_taken(names)
        return names

    @model_validator(mode="after")
    def _names_are_unique(self) -> RewardConfig:
        own = [*self.parts, *self.own_components]
        if twice := [name for name in dict.fromkeys(own) if own.count(name) > 1]:
            raise ValueError(f"{', '.join(twice)}: taken, choose another name")
        return self

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
        known = [*Component, *self.parts, *self.own_components]
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
    def compares_answers(self) -> bool:
        """Whether a component compares the last answer with the row's ground truth."""
        return not {Component.EXACT_MATCH, Component.SOLVED}.isdisjoint(self.computed)

    @property
    def reported(self) -> tuple[str, ...]:
        """Names of the reward parts in the training sample."""
        return (*self.parts, *self.computed, *self.own_components)

    @property
    def own_components(self) -> tuple[str, ...]:
        """Names of the components that the environment defines: functions, then criteria."""
        return (*self.functions, *(self.rubric.criteria if self.rubric else ()))

    def weight(self, name: str) -> float:
        """The weight of a component or of a part of the server's score."""
        return self.weights.get(name, 1.0 if name in _FROM_SERVERS else 0.0)
