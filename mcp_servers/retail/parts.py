"""One request of a customer, from both sides: what the expert does about it and what the customer answers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from mcp_servers.kit import Call

CONFIRM = r"\?|confirm|proceed|go ahead|correct|yes"
CANNOT = (
    r"\b(can ?not|can['\u2019]t|could ?n['\u2019]t|won['\u2019]t|unable|not able|not possible|impossible|unfortunately"
    r"|not (be )?(allowed|permitted|eligible)|no longer|declined?|refused?"
    r"|do(es)? not (offer|allow|permit)|don['\u2019]t (offer|allow))\b"
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


Beat = Look | Write | Say


@dataclass(frozen=True, kw_only=True, slots=True)
class Telling:
    """Something the customer has to be told: one message to them that contains every pattern."""

    patterns: tuple[str, ...]
    is_value: bool
    """Whether it is an amount, a day or the like, which could be hit by telling many of them."""
    source: str | None = None
    """The tool that has to have answered before, where guessing would be easy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    kind: Literal["change", "question", "refusal", "transfer"]
    request: str
    beats: tuple[Beat, ...]
    tellings: tuple[Telling, ...] = ()


def call(name: str, **arguments: object) -> Call:
    return Call(name=name, arguments=arguments)


def exactly(value: object) -> str:
    """A pattern for an amount, a day or an id on its own, not inside a longer number or word."""
    return rf"(?<![\w.]){re.escape(str(value))}(?![\w]|\.\d)"


def told(value: object, *, source: str | None = None) -> Telling:
    return Telling(patterns=(exactly(value),), is_value=True, source=source)


def dollars(amount: Decimal) -> str:
    return f"${abs(amount)}"
