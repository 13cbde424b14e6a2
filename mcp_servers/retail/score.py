"""The score: the final database, what the agent told the customer, and whether the customer consented."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from statistics import fmean
from typing import Any

from pydantic import validate_call

from mcp_rollout.mcp_servers.kit.records import Message, Score, texts_for_user
from mcp_rollout.mcp_servers.retail.case import Case
from mcp_rollout.mcp_servers.retail.database import Diff, diff
from mcp_rollout.mcp_servers.retail.script import ACTIONS, Statement
from mcp_rollout.mcp_servers.retail.shop import WRITES, Shop

DATABASE_SHARE = 0.6
MAX_TOLD_CHARACTERS = 1500
"""A longer message counts as empty: no customer would read it."""

_RECORD = re.compile(r'"\w+"\s*:')
"""A tool's result copied into a message. It counts as empty too: the customer would have to find the answer in it."""
_VALUES = re.compile(r"\d[\d,]{0,19}\.\d\d(?!\d)|\d{4}-\d\d-\d\d|\bTRK\d+")
"""Its repeats are bounded, since a policy may write nothing but digits."""
_YES = re.compile(
    r"\W*(yes|yep|yeah|sure|certainly|of course|okay|ok|please do|go ahead|correct|exactly|right"
    r"|(that|this) is (right|correct|fine)|do (it|that|so))\b",
    re.IGNORECASE,
)
_NO = re.compile(
    r"\b(no|nope|not|never|wait|stop|instead|rather|unless|don['\u2019]?t|changed my mind)\b", re.IGNORECASE
)
_SUBJECT = re.compile(r"\bW\d+\b|\b\d{5}\b")
"""An order's number, or the ZIP code of an account's new address."""


def score(case: Case, shop: Shop, messages: Sequence[Message]) -> Score:
    """Parts `database` and `communication`, each 0 to 1, and their weighted sum.

    `database` is the share of the required values that the database has, and 0 if anything else changed. Without
    required changes it is the outcome. `communication` is the mean of the required statements, the outcome and, if
    changes are required, the customer's consent to each change. The right outcome counts as much as was achieved: the
    mean of the statements and the share of the required values.
    """
    required = required_changes(case)
    made = diff(case.database, shop.database)
    told = _credits(case.statements, shop, messages)
    share = [len(required & made) / len(required)] if required else []
    outcome = fmean([*told, *share]) if shop.outcome == case.outcome else 0.0
    database = 0.0 if made - required else fmean(share or [outcome])
    agreed = [float(bool(required & made) and all_agreed(messages))] if required else []
    return weighted(database, fmean([*told, outcome, *agreed]))


def weighted(database: float, communication: float) -> Score:
    total = DATABASE_SHARE * database + (1 - DATABASE_SHARE) * communication
    return Score(score=total, parts={"database": database, "communication": communication})


def required_changes(case: Case) -> Diff:
    """What the expert's writes change, found by making them in a copy of the database."""
    shop = Shop(database=case.database.copy_to_change(case.customer))
    shop.identify(shop.database.users[case.customer.user_id])
    for write in case.required():
        _checked(write.call.name)(shop, **write.call.arguments)
    return diff(case.database, shop.database)


@cache
def _checked(write: str) -> Callable[..., Any]:
    """A write that validates its arguments. Kept, since making the validator takes longer than the rest of a score."""
    return validate_call(WRITES[write])


def _credits(statements: Sequence[Statement], shop: Shop, messages: Sequence[Message]) -> list[float]:
    """The credit for each statement, 0 to 1.

    A value counts only if it was looked up and its message has few others. If n values are needed, up to 2n + 1 may be
    stated at full credit; beyond that the credit of each falls linearly, to 0 at twice that number.
    """
    said = texts_for_user(messages)
    free = 2 * sum(statement.is_value for statement in statements) + 1
    values = values_in(text.replace(",", "") for text in said)
    precision = min(1.0, max(0.0, 2 - len(values) / free))
    counts: list[float] = []
    for statement in statements:
        texts = said if statement.refused is None else list(_told_after_no(messages, statement.refused))
        if statement.is_value:
            texts = [text for text in texts if len(values_in([text])) <= 1 + statement.beside]
        hit = is_looked_up(statement, shop) and is_stated(statement, texts)
        counts.append(hit * (precision if statement.is_value else 1.0))
    return counts


def values_in(texts: Iterable[str]) -> set[str]:
    """The amounts, days and tracking codes in these texts."""
    return {value for text in texts for value in _VALUES.findall(text)}


def is_looked_up(statement: Statement, shop: Shop) -> bool:
    return all(any(source in shop.answered for source in sources) for sources in statement.looked_up)


def is_stated(statement: Statement, texts: Iterable[str]) -> bool:
    """Whether a text that a customer would read contains every pattern."""
    return any(
        all(re.search(pattern, text, re.IGNORECASE) for pattern in statement.patterns)
        for text in texts
        if len(text) <= MAX_TOLD_CHARACTERS and not _RECORD.search(text)
    )


def is_yes(answer: str) -> bool:
    """Whether it is a clear yes: one at the beginning, and no retraction after it."""
    return _YES.match(answer) is not None and not is_no(answer)


def is_no(answer: str) -> bool:
    return _NO.search(answer) is not None


def all_agreed(messages: Sequence[Message]) -> bool:
    """Whether the customer agreed to each change before it was made.

    That takes a message of the assistant that names the change and its subject, and a clear yes as the customer's next
    reply. A no to the same subject ends an earlier agreement.
    """
    agreed: list[str] = []
    proposal = ""
    for message in messages:
        if message.role == "user":
            if is_yes(message.text):
                agreed.append(proposal)
            elif is_no(message.text):
                agreed = [earlier for earlier in agreed if not _subjects(earlier) & _subjects(proposal)]
            proposal = ""
        elif message.is_for_user:
            proposal = f"{proposal}\n{message.text}"
        for call in message.tool_calls or ():
            if call.name in ACTIONS and not _is_agreed(call.name, call.arguments, agreed):
                return False
    return True


def _told_after_no(messages: Sequence[Message], order_id: str) -> Iterator[str]:
    """Texts that the customer read after first saying no to a proposal about this order."""
    proposal, refused = "", False
    for message in messages:
        if message.role == "user":
            refused = refused or (order_id in _subjects(proposal) and is_no(message.text))
            proposal = ""
        elif message.is_for_user:
            proposal = f"{proposal}\n{message.text}"
            if refused:
                yield message.text


def _is_agreed(tool: str, arguments: Mapping[str, Any], agreed: Sequence[str]) -> bool:
    match arguments:
        case {"order_id": str(order_id)}:
            subject = order_id.strip().lstrip("#").upper()
        case {"address": {"zip_code": str(zip_code)}}:
            subject = zip_code
        case _:
            return True  # the tool rejected the arguments, so the call changed nothing
    return any(
        subject in _subjects(proposal) and re.search(ACTIONS[tool], proposal, re.IGNORECASE) for proposal in agreed
    )


def _subjects(text: str) -> set[str]:
    return set(_SUBJECT.findall(text.upper()))
