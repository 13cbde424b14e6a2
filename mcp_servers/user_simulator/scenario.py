"""What a scripted user does: a state machine over what the agent says. Data only, from Python or from JSON."""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

END = "end"
"""The step name that a cue goes to when the user is content and leaves."""


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Cue(_Data):
    """If the agent's message contains every pattern, the user says this and goes to that step."""

    when: tuple[str, ...] = Field(min_length=1)
    """Regular expressions, each to be found somewhere in the message, upper and lower case alike."""
    says: str
    to: str
    """The next step's name, or `end`. The same step again is an answer that does not bring the user further."""
    reward: float | None = None

    @field_validator("when")
    @classmethod
    def _compile(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error
        return patterns

    def fits(self, message: str) -> bool:
        return all(re.search(pattern, message, re.IGNORECASE) for pattern in self.when)


class Step(_Data):
    """Where the user stands: what moves them on, what they say otherwise, and for how long."""

    cues: tuple[Cue, ...]
    """The first that fits counts."""
    otherwise: tuple[str, ...] = Field(min_length=1)
    """Said in turn where no cue fits; the last one again and again."""
    patience: int = Field(default=3, ge=0)
    """How many replies in a row may leave the user in this step; at the next one they give up."""
    gives_up: str = "This is not getting me anywhere. Goodbye."


class Scenario(_Data):
    opening: str
    first: str
    """The step in which the user waits for the answer to the opening."""
    steps: dict[str, Step]
    max_replies: int = Field(default=50, ge=1)
    """The user leaves after this many replies, wherever they stand: steps may form a circle."""

    @model_validator(mode="after")
    def _names_exist(self) -> Scenario:
        goals = {self.first} | {cue.to for step in self.steps.values() for cue in step.cues}
        if unknown := sorted(goals - self.steps.keys() - {END}):
            raise ValueError(f"steps that do not exist: {', '.join(unknown)}")
        if END in self.steps or self.first == END:
            raise ValueError(f"{END!r} is not a step of yours: it is where the conversation is over")
        return self
