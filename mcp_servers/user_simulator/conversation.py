"""One conversation with the scripted user. No I/O and no await: every reply is one piece."""

from __future__ import annotations

from mcp_servers._harness import Elicited, Reply
from mcp_servers.user_simulator.scenario import END, Scenario


class OutOfOrder(ValueError):
    """The sequence number is neither the next one nor one that was answered; `str()` says which was expected."""


class Conversation:
    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self._step = scenario.first
        self._unhelpful = 0
        self._replies: list[Reply] = []
        self._elicited: list[Elicited] = []

    def elicit(self, seq: int, question: str) -> Elicited:
        """The user's answer to question number `seq` of a server; counted and repeated like replies.

        Raises:
            OutOfOrder: `seq` skips a number.
        """
        if 1 <= seq <= len(self._elicited):
            return self._elicited[seq - 1]
        if seq != len(self._elicited) + 1:
            raise OutOfOrder(f"question {seq} is out of order: the next one is {len(self._elicited) + 1}")
        fitting = next((answer for answer in self.scenario.answers if answer.fits(question)), None)
        if fitting is None:
            self._elicited.append(Elicited(action="decline"))
        else:
            self._elicited.append(Elicited(action=fitting.action, content=fitting.content))
        return self._elicited[-1]

    def reply(self, seq: int, message: str) -> Reply:
        """The user's reply number `seq` (1, 2, 3, ...) to the agent's message.

        A number that was answered before gets the same answer and moves nothing, whatever the message says.

        Raises:
            OutOfOrder: `seq` skips a number, or comes after the user left.
        """
        if 1 <= seq <= len(self._replies):
            return self._replies[seq - 1]
        if self._replies and self._replies[-1].done:
            raise OutOfOrder(f"reply {seq}: the user left after reply {len(self._replies)}")
        if seq != len(self._replies) + 1:
            raise OutOfOrder(f"reply {seq} is out of order: the next one is {len(self._replies) + 1}")
        self._replies.append(self._next(message))
        return self._replies[-1]

    def _next(self, message: str) -> Reply:
        step = self.scenario.steps[self._step]
        cue = next((cue for cue in step.cues if cue.fits(message)), None)
        to = cue.to if cue else self._step
        self._unhelpful = self._unhelpful + 1 if to == self._step else 0
        self._step = to
        if to == END and cue:
            return Reply(message=cue.says, done=True, reward=cue.reward)
        if self._unhelpful > step.patience or len(self._replies) + 1 >= self.scenario.max_replies:
            return Reply(message=step.gives_up, done=True)
        if cue:
            return Reply(message=cue.says, done=False, reward=cue.reward)
        return Reply(message=step.otherwise[min(self._unhelpful, len(step.otherwise)) - 1], done=False)
