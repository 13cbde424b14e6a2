"""Configuration of the filters that check every turn."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from gateway.errors import InvalidValue
from rollout.environment.reward_config import Section


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


class FiltersConfig(Section):
    """The filters that check every turn; a plain string is short for `{action: ...}`."""

    void: FilterConfig = FilterConfig()
    """Matches turns with neither a readable call nor an answer: empty, cut, broken or repeated text."""
    repeated_calls: RepeatedCallsConfig = RepeatedCallsConfig()
    """Matches turns that repeat a call."""
    long_thinking: LongThinkingConfig = LongThinkingConfig()
    """Matches turns that think too long."""

    @field_validator("*", mode="before")
    @classmethod
    def _accept_a_plain_action(cls, value: Any) -> Any:
        return {"action": value} if isinstance(value, str) else value
