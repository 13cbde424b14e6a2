"""One request of a customer, from both sides: what the expert does about it and what the customer answers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from mcp_servers.kit import Call
from mcp_servers.retail.desk import lookup

CONFIRM = r"\?|confirm|proceed|go ahead|correct|yes"
CANNOT = (
    r"\b(can ?not|can['\u2019]t|could ?n['\u2019]t|won['\u2019]t|unable|not able|not possible|impossible|unfortunately"
    r"|not (be )?(allowed|permitted|eligible)|no longer|declined?|refused?"
    r"|do(es)? not (offer|allow|permit)|don['\u2019]t (offer|allow))\b"
)
UNCHANGED = (
    r"\b(as (it|they) (is|are|was|were)|unchanged|untouched|alone|nothing|stays?|remains?|leave|left|keep|kept"
    r"|(have|has|did|do|will|is|was) not|(haven|hasn|didn|won|isn|wasn)['\u2019]t)\b"
)
COLLEAGUE = r"\b(colleague|specialist|transfer|hand(ed|ing)? (you |this )?over|supervisor)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """Read-only calls, made together."""

    thinking: str
    calls: tuple[Call, ...]
    needs_customer: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Write:
    """A call that changes the database: what the task requires."""

    thinking: str
    call: Call


@dataclass(frozen=True, kw_only=True, slots=True)
class Say:
    """A message to the customer, and how the customer takes it."""

    thinking: str
    text: str
    cues: tuple[str, ...]
    """Patterns that the customer waits for; any wording that has them all will do."""
    hint: str
    """What the customer says to a message without them."""
    answer: str = ""
    """What the customer says to a message with them; empty on a part's last one, where the next request follows."""
    sooner: bool = False
    """Whether a message that has the next one's cues already gets that one's answer at once."""


Beat = Look | Write | Say


@dataclass(frozen=True, kw_only=True, slots=True)
class Telling:
    """Something the customer has to be told: one message to them that contains every pattern."""

    patterns: tuple[str, ...]
    is_value: bool
    """Whether it is an amount, a day or the like, which could be hit by telling many of them."""
    looked_up: tuple[tuple[str, ...], ...] = ()
    """What has to have been looked up to know it: of each, one (`lookup`)."""
    beside: int = 2
    """How many other values the message may name: who names them all has not answered."""
    refused: str | None = None
    """The order about which the customer has to have said no before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    kind: Literal["change", "withdrawn", "question", "refusal", "transfer"]
    request: str
    beats: tuple[Beat, ...]
    tellings: tuple[Telling, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One change from look-up to report, of which requests are made: as it is, or with another one after a no."""

    wish: str
    subject: str
    """The order's number, or the ZIP code of an account's new address."""
    look: Look
    proposal: Say
    """Its answer is a yes."""
    write: Write
    report: Say
    tellings: tuple[Telling, ...] = ()

    def part(self) -> Part:
        beats = (self.look, self.proposal, self.write, self.report)
        return Part(kind="change", request=self.wish, beats=beats, tellings=self.tellings)


def call(name: str, **arguments: object) -> Call:
    return Call(name=name, arguments=arguments)


def exactly(value: object) -> str:
    """A pattern for an amount, a day or an id on its own, not inside a longer number or word."""
    return rf"(?<![\w.]){re.escape(str(value))}(?![\w]|\.\d)"


def told(value: object, *looked_up: tuple[str, ...], beside: int = 2) -> Telling:
    return Telling(patterns=(exactly(value),), is_value=True, looked_up=looked_up, beside=beside)


def by_any(subject: str, *tools: str) -> tuple[str, ...]:
    """Looked up with one of these tools."""
    return tuple(lookup(tool, subject) for tool in tools)


def dollars(amount: Decimal) -> str:
    return f"${abs(amount)}"
