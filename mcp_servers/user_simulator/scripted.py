"""The scripted user: a state machine over the agent's messages, described by data from Python or JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, model_validator

from mcp_rollout.mcp_servers.kit import Elicited, Reply

END = "end"
"""The `to` of a cue after which the satisfied user leaves."""


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
    """Whether the text contains each pattern, ignoring case."""
    return all(re.search(pattern, text, re.IGNORECASE) for pattern in patterns)


class Cue(_Data):
    """A transition: to a message that contains every pattern, the user replies `says` and goes to the step `to`."""

    when: tuple[Pattern, ...] = Field(min_length=1)
    """Regular expressions that the message must contain, ignoring case."""
    says: str
    to: str
    """The next step's name, or `end`. The present step's name makes this an unhelpful message."""
    reward: float | None = None

    def fits(self, message: str) -> bool:
        return found_all(self.when, message)


class Step(_Data):
    """A state of the user: its transitions, the replies to other messages, and the patience for them."""

    cues: tuple[Cue, ...]
    """The first that fits is taken."""
    otherwise: tuple[str, ...] = Field(min_length=1)
    """Replies if no cue fits, one after the other; the last one is repeated."""
    patience: int = Field(default=3, ge=0)
    """How many messages in a row may leave the user in this step; at the next one the user gives up."""
    gives_up: str = "This is not getting me anywhere. Goodbye."


class Answer(_Data):
    """The user's answer to a question that a server asks during a tool call."""

    when: tuple[Pattern, ...] = ()
    """Patterns in the question, as in a cue; without patterns the answer fits every question."""
    action: Literal["accept", "decline", "cancel"] = "accept"
    content: dict[str, JsonValue] | None = None
    """With `accept`: data that fits the question's schema."""

    def fits(self, question: str) -> bool:
        return found_all(self.when, question)


class Scenario(_Data):
    """A scripted user's whole behaviour."""

    opening: str
    first: str
    """The step after the opening."""
    steps: dict[str, Step]
    answers: tuple[Answer, ...] = ()
    """The first that fits is given; a question without one is declined."""
    max_replies: int = Field(default=50, ge=1)
    """The user leaves after this many replies in any step, because steps may form a cycle."""

    @model_validator(mode="after")
    def _names_exist(self) -> Scenario:
        goals = {self.first} | {cue.to for step in self.steps.values() for cue in step.cues}
        if unknown := sorted(goals - self.steps.keys() - {END}):
            raise ValueError(f"steps that do not exist: {', '.join(unknown)}")
        if END in self.steps or self.first == END:
            raise ValueError(f"{END!r} is reserved for the end of the conversation and cannot be a step")
        return self


def answer_of(answers: Iterable[Answer], question: str) -> Elicited:
    """The first answer that fits; a question without one is declined."""
    fitting = next((answer for answer in answers if answer.fits(question)), None)
    if fitting is None:
        return Elicited(action="decline")
    return Elicited(action=fitting.action, content=fitting.content)


class ScriptedUser:
    """A `SimulatedUser` that follows a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self._step = scenario.first
        self._unhelpful = 0
        self._replies = 0

    def opening(self) -> str:
        return self.scenario.opening

    def elicit(self, question: str) -> Elicited:
        return answer_of(self.scenario.answers, question)

    def reply(self, message: str) -> Reply:
        self._replies += 1
        step = self.scenario.steps[self._step]
        cue = next((cue for cue in step.cues if cue.fits(message)), None)
        to = cue.to if cue else self._step
        self._unhelpful = self._unhelpful + 1 if to == self._step else 0
        self._step = to
        if to == END and cue:
            return Reply(message=cue.says, done=True, reward=cue.reward)
        if self._unhelpful > step.patience or self._replies >= self.scenario.max_replies:
            return Reply(message=step.gives_up, done=True)
        if cue:
            return Reply(message=cue.says, done=False, reward=cue.reward)
        return Reply(message=step.otherwise[min(self._unhelpful, len(step.otherwise)) - 1], done=False)
