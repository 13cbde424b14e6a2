"""One conversation with the scripted user. No I/O and no await: every reply is one piece."""

from __future__ import annotations

from collections.abc import Iterable

from mcp_servers.kit import Elicited, Reply
from mcp_servers.user_simulator.scenario import END, Answer, Scenario


def answer_of(answers: Iterable[Answer], question: str) -> Elicited:
    """The first answer that fits; a question that none fits is declined."""
    fitting = next((answer for answer in answers if answer.fits(question)), None)
    if fitting is None:
        return Elicited(action="decline")
    return Elicited(action=fitting.action, content=fitting.content)


class Conversation:
    """Where the user stands in the scenario. A `SimulatedUser`."""

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
        """The user's reply to the agent's message."""
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
