"""The score: what is in the database at the end, and what the customer was told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from pydantic import validate_call

from mcp_servers.kit import Message, Score
from mcp_servers.retail.case import Case
from mcp_servers.retail.changes import WRITES
from mcp_servers.retail.consent import all_agreed
from mcp_servers.retail.desk import Desk
from mcp_servers.retail.tellings import is_looked_up, is_said, told, values_in
from mcp_servers.retail.world import Facts
from mcp_servers.retail.world import changes as changed

DATABASE_SHARE = 0.6


def score(case: Case, desk: Desk, messages: Sequence[Message]) -> Score:
    """Parts `database` and `communication`, each 0 to 1, and their weighted sum.

    `database`: the share of the required values that are there; nothing if anything else changed. Where nothing is
    required it is the outcome. `communication`: the mean of what has to be told, the outcome, and (where something is
    required) having had the customer's yes before each change. The right outcome is worth as much as was achieved:
    the mean of what was told and the share of the required values.
    """
    if case.express:
        ways = [case, *(replace(case, parts=(part,)) for part in case.alternatives)]
        return max((_express_score(way, desk, messages) for way in ways), key=lambda score: score.score)
    required = required_changes(case)
    made = changed(case.world, desk.world)
    heard = told(case.tellings, desk, messages)
    share = [len(required & made) / len(required)] if required else []
    outcome = fmean([*heard, *share]) if desk.outcome == case.outcome else 0.0
    database = 0.0 if made - required else fmean(share or [outcome])
    agreed = [float(bool(required & made) and all_agreed(messages))] if required else []
    return _score(database, fmean([*heard, outcome, *agreed]))


def _express_score(case: Case, desk: Desk, messages: Sequence[Message]) -> Score:
    """The same parts where nothing is recorded and nobody has to be asked first.

    Telling counts only after the required change, only with no other day or amount told (one question, one answer), and
    only what was looked up: guessing a day is worth nothing, however easy. Which step fits is the decision that these
    tasks are about, so trying a second one is worth nothing either.
    """
    if len(desk.tried) > 1:
        return _score(0.0, 0.0)
    required = required_changes(case)
    made = changed(case.world, desk.world)
    said = [message.text for message in messages if message.is_told]
    allowed = sum(telling.is_value for telling in case.tellings)
    heard = (
        made == required
        and all(is_looked_up(telling, desk) and is_said(telling, said) for telling in case.tellings)
        and len(values_in(said)) <= allowed
    )
    return _score(float(made == required and (bool(required) or heard)), float(heard))


def _score(database: float, communication: float) -> Score:
    total = DATABASE_SHARE * database + (1 - DATABASE_SHARE) * communication
    return Score(score=total, parts={"database": database, "communication": communication})


def required_changes(case: Case) -> Facts:
    """What the expert's writes change, found by making them in a copy of the world."""
    desk = Desk(world=case.world.copy_to_change())
    desk.identify(desk.world.users[case.customer.user_id])
    for write in case.required():
        validate_call(WRITES[write.call.name])(desk, **write.call.arguments)
    return changed(case.world, desk.world)
