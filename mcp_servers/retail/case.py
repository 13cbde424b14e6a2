"""A task's instance, and the scripted conversation of its expert and its customer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from mcp_rollout.mcp_servers.kit.records import Call, Difficulty, Expert, ExpertTurn
from mcp_rollout.mcp_servers.retail.database import Database, User
from mcp_rollout.mcp_servers.retail.script import Look, Request, Say, Statement, Turn, Write, call
from mcp_rollout.mcp_servers.retail.shop import Outcome


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    task: str
    seed: int
    database: Database
    """The initial database; a trajectory that changes it needs its own copy."""
    customer: User
    requests: tuple[Request, ...]
    identity_told: bool
    by_email: bool
    greeting: str
    closing: str

    @property
    def opening(self) -> str:
        who = f" {self.who}" if self.identity_told else ""
        return f"{self.greeting}{who} {self.requests[0].text}"

    @property
    def who(self) -> str:
        user = self.customer
        if self.by_email:
            return f"My email address is {user.email}."
        return f"I am {user.first_name} {user.last_name}, ZIP code {user.address.zip_code}."

    @property
    def outcome(self) -> Outcome:
        kinds = {request.kind for request in self.requests}
        return "transferred" if "transfer" in kinds else "refused" if kinds == {"refusal"} else "resolved"

    @property
    def difficulty(self) -> Difficulty:
        """By the number of the expert's turns: up to 5, up to 10, more."""
        turns = len(self.turns())
        return "easy" if turns <= 5 else "medium" if turns <= 10 else "hard"

    @property
    def statements(self) -> tuple[Statement, ...]:
        return tuple(statement for request in self.requests for statement in request.statements)

    def required(self) -> tuple[Write, ...]:
        return tuple(turn for request in self.requests for turn in request.turns if isinstance(turn, Write))

    def turns(self) -> tuple[Turn, ...]:
        """The whole conversation, one entry per assistant turn; every `Say` has the customer's answer to it."""
        return tuple(self._turns())

    def expert(self) -> Expert:
        """The scripted expert's turns."""
        return Expert(turns=[_expert_turn(turn) for turn in self.turns()])

    def _turns(self) -> Iterator[Turn]:
        find = self._find()
        if not self.identity_told:
            yield Say(
                thinking="I do not know yet who this is.",
                text="I am glad to help. What is your email address, or your name and ZIP code?",
                cues=(r"e-?mail|\bzip\b|\bname\b|verify|identity|authenticate",),
                hint="Do you not need to know who I am first?",
                answer=self.who,
            )
        first, *rest = self.requests[0].turns
        if self.identity_told and isinstance(first, Look) and not first.needs_customer:
            yield replace(find, calls=(*find.calls, *first.calls))
        else:
            yield find
            rest = [first, *rest]
        for index, request in enumerate(self.requests):
            last = index == len(self.requests) - 1
            *turns, report = rest if index == 0 else request.turns
            assert isinstance(report, Say)
            yield from turns
            if last:
                yield Look(thinking="That was the last request.", calls=(self._record(),))
            yield replace(report, answer=self.closing if last else f"Thank you. {self.requests[index + 1].text}")

    def _find(self) -> Look:
        user = self.customer
        if self.by_email:
            found = call("find_user_by_email", email=user.email)
        else:
            found = call(
                "find_user_by_name_zip",
                first_name=user.first_name,
                last_name=user.last_name,
                zip_code=user.address.zip_code,
            )
        return Look(thinking="First I find the account.", calls=(found,))

    def _record(self) -> Call:
        summary = f"{len(self.requests)} request(s), {self.outcome}."
        return call("record_outcome", outcome=self.outcome, summary=summary)


def _expert_turn(turn: Turn) -> ExpertTurn:
    if isinstance(turn, Say):
        return ExpertTurn(thinking=turn.thinking, content=turn.text)
    calls = turn.calls if isinstance(turn, Look) else (turn.call,)
    return ExpertTurn(thinking=turn.thinking, calls=list(calls))
