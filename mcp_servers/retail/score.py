"""The score: what is in the database at the end, and what the customer was told."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from pydantic import validate_call

from mcp_servers.kit import Message, Score
from mcp_servers.retail.case import Case
from mcp_servers.retail.changes import WRITES
from mcp_servers.retail.desk import Desk
from mcp_servers.retail.world import Facts
from mcp_servers.retail.world import changes as changed

DATABASE_SHARE = 0.6
MAX_TOLD_CHARACTERS = 1500
"""A longer message tells nothing: no customer reads it."""

_RECORD = re.compile(r'"\w+"\s*:')
"""A tool's result read out as it came. It tells nothing either: which of it answers the customer was left open."""

_VALUES = re.compile(r"\d[\d,]*\.\d\d(?!\d)|\d{4}-\d\d-\d\d|\bTRK\d+")


def score(case: Case, desk: Desk, messages: Sequence[Message]) -> Score:
    """Parts `database` and `communication`, each 0 to 1, and their weighted sum.

    `database`: the share of the required values that are there; nothing if anything else changed. Where nothing is
    required it is earned by the right outcome. `communication`: the mean of what has to be told, the recorded outcome,
    and (where something is required) having asked before each change. The outcome counts only with some other
    achievement, so that recording one and doing nothing else is worth nothing.
    """
    if case.express:
        ways = [case, *(replace(case, parts=(part,)) for part in case.alternatives)]
        return max((_express_score(way, desk, messages) for way in ways), key=lambda score: score.score)
    required = required_changes(case)
    made = changed(case.world, desk.world)
    told = _told(case, [message.text for message in messages if message.is_told])
    achieved = bool(required & made) or any(told)
    outcome = float(desk.outcome == case.outcome and achieved)
    if made - required:
        database = 0.0
    else:
        database = len(required & made) / len(required) if required else outcome
    items = [*told, outcome]
    if required:
        items.append(float(bool(required & made) and _asked_first(messages)))
    communication = sum(items) / len(items)
    total = DATABASE_SHARE * database + (1 - DATABASE_SHARE) * communication
    return Score(score=total, parts={"database": database, "communication": communication})


def _express_score(case: Case, desk: Desk, messages: Sequence[Message]) -> Score:
    """The same parts where nothing is recorded and nobody has to be asked first.

    Telling counts only after the required change, only with no other day or amount told (one question, one answer), and
    only what was looked up: guessing a day is worth nothing, however easy.
    """
    required = required_changes(case)
    made = changed(case.world, desk.world)
    said = [message.text for message in messages if message.is_told]
    values = {value for text in said for value in _VALUES.findall(text)}
    tellings = [telling for part in case.parts for telling in part.tellings]
    allowed = sum(telling.is_value for telling in tellings)
    looked_up = all(telling.source in (None, *desk.answered) for telling in tellings)
    told = made == required and looked_up and len(values) <= allowed and all(_told(case, said))
    database = float(made == required and (bool(required) or told))
    communication = float(told)
    total = DATABASE_SHARE * database + (1 - DATABASE_SHARE) * communication
    return Score(score=total, parts={"database": database, "communication": communication})


def required_changes(case: Case) -> Facts:
    """What the expert's writes change, found by making them in a copy of the world."""
    desk = Desk(world=case.world.copy_to_change())
    desk.identify(desk.world.users[case.customer.user_id])
    for write in case.required():
        validate_call(WRITES[write.call.name])(desk, **write.call.arguments)
    return changed(case.world, desk.world)


def _told(case: Case, said: Sequence[str]) -> list[float]:
    """For each telling, what it counts.

    A value that was told counts less the more other values were told: reading whole records out would otherwise hit
    every fact by accident. Twice as many values as needed and four more are free.
    """
    said = [text for text in said if len(text) <= MAX_TOLD_CHARACTERS and not _RECORD.search(text)]
    tellings = [telling for part in case.parts for telling in part.tellings]
    values = {value for text in said for value in _VALUES.findall(text.replace(",", ""))}
    allowed = 2 * sum(telling.is_value for telling in tellings) + 4
    precision = min(1.0, allowed / len(values)) if values else 1.0
    counts: list[float] = []
    for telling in tellings:
        hit = any(all(re.search(p, text, re.IGNORECASE) for p in telling.patterns) for text in said)
        counts.append(hit * (precision if telling.is_value else 1.0))
    return counts


def _asked_first(messages: Sequence[Message]) -> bool:
    """Whether each change was named to the customer, who answered, before it was made."""
    answered: list[str] = []
    pending: list[str] = []
    for message in messages:
        if message.role == "user":
            answered, pending = answered + pending, []
        elif message.is_told:
            pending.append(message.text.upper())
        for call in message.tool_calls or ():
            if call.name in WRITES and not any(_names(call.arguments) in text for text in answered):
                return False
    return True


def _names(arguments: dict[str, object]) -> str:
    """What a message must contain to be about this change: the order, or the new ZIP code of an account."""
    match arguments:
        case {"order_id": str(order_id)}:
            return order_id.strip().lstrip("#").upper()
        case {"address": {"zip_code": str(zip_code)}}:
            return zip_code
        case _:
            return ""
