"""What a scripted user does: a state machine over what the agent says. Data only, from Python or from JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, model_validator

END = "end"
"""The step name that a cue goes to when the user is content and leaves."""


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _compiled(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error
    return pattern


Pattern = Annotated[str, AfterValidator(_compiled)]


def found_all(patterns: Iterable[str], text: str) -> bool:
    """Whether each pattern is found somewhere, upper and lower case alike."""
    return all(re.search(pattern, text, re.IGNORECASE) for pattern in patterns)


class Cue(_Data):
    """If the agent's message contains every pattern, the user says this and goes to that step."""

    when: tuple[Pattern, ...] = Field(min_length=1)
    """Regular expressions, each to be found somewhere in the message, upper and lower case alike."""
    says: str
    to: str
    """The next step's name, or `end`. The same step again is an answer that does not bring the user further."""
    reward: float | None = None

    def fits(self, message: str) -> bool:
        return found_all(self.when, message)


class Step(_Data):
    """Where the user stands: what moves them on, what they say otherwise, and for how long."""

    cues: tuple[Cue, ...]
    """The first that fits counts."""
    otherwise: tuple[str, ...] = Field(min_length=1)
    """Said in turn where no cue fits; the last one again and again."""
    patience: int = Field(default=3, ge=0)
    """How many replies in a row may leave the user in this step; at the next one they give up."""
    gives_up: str = "This is not getting me anywhere. Goodbye."


class Answer(_Data):
    """What the user says to a question that a server asks them within a call."""

    when: tuple[Pattern, ...] = ()
    """As in a cue, found in the question; none of them fits every question."""
    action: Literal["accept", "decline", "cancel"] = "accept"
    content: dict[str, JsonValue] | None = None
    """With `accept`; the question's own schema says what belongs there."""

    def fits(self, question: str) -> bool:
        return found_all(self.when, question)


class Scenario(_Data):
    opening: str
    first: str
    """The step in which the user waits for the answer to the opening."""
    steps: dict[str, Step]
    answers: tuple[Answer, ...] = ()
    """The first that fits is given; a question that none fits is declined."""
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
