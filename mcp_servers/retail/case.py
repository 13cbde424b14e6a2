"""One instance of a task, and the conversation that its expert and its customer have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from mcp_servers.kit import Call
from mcp_servers.retail.desk import Outcome
from mcp_servers.retail.parts import Beat, Look, Part, Say, Telling, Write, call
from mcp_servers.retail.world import User, World


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    task: str
    seed: int
    world: World
    """As it is before anyone does anything. Whoever plays in it copies it."""
    customer: User
    parts: tuple[Part, ...]
    identity_told: bool
    by_email: bool
    greeting: str
    closing: str
    alternatives: tuple[Part, ...] = ()
    """What would content the customer as well as `parts`."""
    express: bool = False
    """The shop knows the customer, who agreed beforehand to what is allowed, and records the outcome by itself."""

    @property
    def opening(self) -> str:
        who = f" {self.who}" if self.identity_told and not self.express else ""
        return f"{self.greeting}{who} {self.parts[0].request}"

    @property
    def who(self) -> str:
        user = self.customer
        if self.by_email:
            return f"My email address is {user.email}."
        return f"I am {user.first_name} {user.last_name}, ZIP code {user.address.zip_code}."

    @property
    def outcome(self) -> Outcome:
        kinds = {part.kind for part in self.parts}
        return "transferred" if "transfer" in kinds else "refused" if kinds == {"refusal"} else "resolved"

    @property
    def difficulty(self) -> Literal["easy", "medium", "hard"]:
        """By the expert's assistant turns: up to 5, up to 10, more."""
        turns = len(self.beats())
        return "easy" if turns <= 5 else "medium" if turns <= 10 else "hard"

    @property
    def tellings(self) -> tuple[Telling, ...]:
        return tuple(telling for part in self.parts for telling in part.tellings)

    def required(self) -> tuple[Write, ...]:
        return tuple(beat for part in self.parts for beat in part.beats if isinstance(beat, Write))

    def beats(self) -> tuple[Beat, ...]:
        """The whole conversation, one beat per assistant turn; every `Say` has the customer's answer to it."""
        return tuple(self._express_beats() if self.express else self._beats())

    def _beats(self) -> Iterator[Beat]:
        find = self._find()
        if not self.identity_told:
            yield Say(
                thinking="I do not know yet who this is.",
                text="I am glad to help. What is your email address, or your name and ZIP code?",
                cues=(r"e-?mail|\bzip\b|\bname\b|verify|identity|authenticate",),
                hint="Do you not need to know who I am first?",
                answer=self.who,
            )
        first, *rest = self.parts[0].beats
        if self.identity_told and isinstance(first, Look) and not first.needs_customer:
            yield replace(find, calls=(*find.calls, *first.calls))
        else:
            yield find
            rest = [first, *rest]
        for index, part in enumerate(self.parts):
            last = index == len(self.parts) - 1
            *beats, report = rest if index == 0 else part.beats
            assert isinstance(report, Say)
            yield from beats
            if last:
                yield Look(thinking="That was the last request.", calls=(self._record(),))
            yield replace(report, answer=self.closing if last else f"Thank you. {self.parts[index + 1].request}")

    def _express_beats(self) -> Iterator[Beat]:
        *beats, report = self.parts[0].beats
        assert isinstance(report, Say)
        yield from beats
        yield replace(report, answer=self.closing)

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
        return call("record_outcome", outcome=self.outcome, summary=f"{len(self.parts)} request(s), {self.outcome}.")
