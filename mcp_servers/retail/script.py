"""The building blocks of a task's script: what the expert does about a request, and what the customer answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from random import Random
from typing import Literal

from mcp_rollout.mcp_servers.kit.records import Call
from mcp_rollout.mcp_servers.retail.database import Database, Line, Order, OrderStatus, PaymentMethod, User, Variant
from mcp_rollout.mcp_servers.retail.generate import make_order
from mcp_rollout.mcp_servers.retail.shop import lookup

_DONE = r"\b(done|has been|have been|is now|are now|updated|changed|set|will (now )?(be|go)|goes|I['\u2019]ve|I have)\b"
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
ACTIONS: dict[str, str] = {
    "cancel_order": r"cancel",
    "modify_order_address": r"address|\bsen[dt]|ship|deliver|\bgo(es)? to\b",
    "modify_order_items": r"chang|swap|replac|modif|switch|instead",
    "change_payment": r"\bpa(y|id)|charg",
    "return_items": r"return|refund|\b(take|taken|send|sent|give|given) .{0,80}\bback\b|\b(take|send) back",
    "exchange_items": r"exchang|swap|replac|chang|switch|instead",
    "update_user_address": r"address|account",
}
"""For each tool that changes the database, a pattern that a proposal of the change contains."""

_BEFORE = "Before you do anything, please tell me which order you mean and what exactly you will do."


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """A turn of read-only calls, made together."""

    thinking: str
    calls: tuple[Call, ...]
    needs_customer: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Write:
    """A turn with a call that changes the database, as the task requires."""

    thinking: str
    call: Call


@dataclass(frozen=True, kw_only=True, slots=True)
class Say:
    """A turn with a message to the customer, and the customer's reply."""

    thinking: str
    text: str
    cues: tuple[str, ...]
    """Patterns that the customer waits for; any wording with all of them is accepted."""
    hint: str
    """The customer's reply to a message without them."""
    answer: str = ""
    """The customer's reply to a message with them; empty in a request's last turn, which the next request follows."""
    sooner: bool = False
    """Whether a message with the next message's cues already gets that one's answer."""


Turn = Look | Write | Say


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """Something that the agent has to tell the customer: one message that contains every pattern."""

    patterns: tuple[str, ...]
    is_value: bool
    """Whether it is an amount, a day or the like, which an agent could hit by telling many of them."""
    looked_up: tuple[tuple[str, ...], ...] = ()
    """Look-ups (`lookup`) that the agent needs: one of each tuple."""
    beside: int = 2
    """How many other values the message may contain; a message with all of them is not an answer."""
    refused: str | None = None
    """The order about which the customer must have said no before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One request of a customer, from its text to the agent's report."""

    kind: Literal["change", "withdrawn", "question", "refusal", "transfer"]
    text: str
    turns: tuple[Turn, ...]
    statements: tuple[Statement, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One change from look-up to report. It makes a request by itself, or with another change after a no."""

    wish: str
    subject: str
    """The order's number, or the ZIP code of an account's new address."""
    look: Look
    proposal: Say
    """Its answer is a yes."""
    write: Write
    report: Say
    statements: tuple[Statement, ...] = ()

    def request(self) -> Request:
        turns = (self.look, self.proposal, self.write, self.report)
        return Request(kind="change", text=self.wish, turns=turns, statements=self.statements)


def call(name: str, **arguments: object) -> Call:
    return Call(name=name, arguments=arguments)


def look_at(number: str) -> Look:
    """A look at one order."""
    return Look(thinking=f"Let me look at {number}.", calls=(call("get_order", order_id=number),))


def exactly(value: object) -> str:
    """A pattern for an amount, a day or an id that is not part of a longer number or word."""
    return rf"(?<![\w.]){re.escape(str(value))}(?![\w]|\.\d)"


def states(value: object, *looked_up: tuple[str, ...], beside: int = 2) -> Statement:
    return Statement(patterns=(exactly(value),), is_value=True, looked_up=looked_up, beside=beside)


def by_any(subject: str, *tools: str) -> tuple[str, ...]:
    """Look-ups of the subject with any of these tools."""
    return tuple(lookup(tool, subject) for tool in tools)


def dollars(amount: Decimal) -> str:
    return f"${abs(amount)}"


def item_names(lines: Sequence[Line]) -> str:
    """``the Teapot and the Wool Socks``"""
    return " and ".join(f"the {line.name}" for line in lines)


def described(options: dict[str, str]) -> str:
    """``colour black, base clamp``"""
    return ", ".join(f"{name} {value}" for name, value in options.items())


def proposed_change(
    write: Call,
    *,
    subject: str,
    wish: str,
    look: Look,
    plan: str,
    proposal: str,
    yes: str,
    done: str,
    report: str,
    question: str,
    amount: Decimal | None = None,
    confirmed: str = "Confirmed.",
    before: str = _BEFORE,
) -> Change:
    """A change that the expert proposes, makes and reports.

    Args:
        write: The call that makes the change.
        plan: The expert's thinking before the proposal; `confirmed` and `done` are those before call and report.
        yes: The customer's answer to the proposal.
        question: The customer's reply to a report that lacks the amount, or does not say that the change was made.
        amount: The amount that the report has to state, if any.
        before: The customer's reply to a message that does not propose the change clearly.
    """
    return Change(
        wish=wish,
        subject=subject,
        look=look,
        proposal=Say(
            thinking=plan,
            text=proposal,
            cues=(exactly(subject), CONFIRM, ACTIONS[write.name]),
            hint=before,
            answer=yes,
        ),
        write=Write(thinking=confirmed, call=write),
        report=Say(thinking=done, text=report, cues=(_DONE if amount is None else exactly(amount),), hint=question),
        statements=() if amount is None else (states(amount, by_any(subject, write.name)),),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """The task that is being drawn: the random generator, the database, and the customer whose requests are drawn."""

    rng: Random
    database: Database
    customer: User
    _reserved: set[str] = field(default_factory=set[str])

    def order(self, status: OrderStatus, *, lines: int | None = None, delivered_days_ago: int | None = None) -> Order:
        """Adds a new order of the customer for one request alone, so that no two requests concern the same order."""
        return make_order(
            self.rng,
            self.database,
            self.customer,
            status,
            lines=lines,
            delivered_days_ago=delivered_days_ago,
            without=self._reserved,
        )

    def identifying_product(self, order: Order) -> str | None:
        """The name of a product that no other order of the customer has, and that later ones will not have."""
        lines = [line for other in self.database.orders_of(self.customer) for line in other.lines]
        for line in order.lines:
            if sum(other.product_id == line.product_id for other in lines) == 1:
                self._reserved.add(line.product_id)
                return line.name
        return None

    def method(self, payment_method_id: str) -> PaymentMethod:
        return next(m for m in self.customer.payment_methods if m.payment_method_id == payment_method_id)

    def other_method(self, order: Order) -> PaymentMethod:
        """A card or account of the customer that does not pay the order."""
        others = [m for m in self.customer.payment_methods if m.payment_method_id != order.payment_method_id]
        return next(m for m in others if m.kind != "gift_card")

    def swap(self, line: Line) -> Variant:
        """Draws another variant of the line's product that is in stock."""
        variants = self.database.products[line.product_id].variants
        return self.rng.choice([variant for variant in variants if variant.stock and variant.sku != line.sku])

    def say(self, *phrasings: str) -> str:
        return self.rng.choice(phrasings)
