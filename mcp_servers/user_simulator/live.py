"""A user whom a person plays, at a desk."""

from __future__ import annotations

from mcp_servers.kit import Elicited, Numbered, Reply
from mcp_servers.user_simulator.conversation import answer_of
from mcp_servers.user_simulator.desk import Desk, Line
from mcp_servers.user_simulator.persona import Persona


class LiveUser:
    """A `SimulatedUser`. The person is told who they are, what they want, and all that was said."""

    def __init__(self, persona: Persona, desk: Desk, *, task: str) -> None:
        self._persona, self._desk, self._task = persona, desk, task
        self._said: list[Line] = []
        self._openings = Numbered[str]("opening")
        self._replies = 0

    async def opening(self) -> str:
        return await self._openings.answer(1, self._open)

    async def reply(self, message: str) -> Reply:
        await self.opening()
        heard = Line(by="assistant", text=message)
        answer = await self._desk.ask(self._about("answer the assistant"), [*self._said, heard])
        self._said += [heard, Line(by="user", text=answer.message)]
        self._replies += 1
        return Reply(message=answer.message, done=answer.done or self._replies >= self._persona.max_replies)

    def elicit(self, question: str) -> Elicited:
        return answer_of(self._persona.answers, question)

    async def _open(self) -> str:
        opening = self._persona.opening
        if opening is None:
            opening = (await self._desk.ask(self._about("begin the conversation"), [])).message
        self._said.append(Line(by="user", text=opening))
        return opening

    def _about(self, what: str) -> dict[str, str]:
        return {
            "Task": f"{self._task}: {what}",
            "Who you are": self._persona.persona,
            "What you want": self._persona.goal,
            "When you leave": self._persona.stop,
        }
