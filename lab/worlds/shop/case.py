"""A short task's instance: the customer is signed in and consents to every allowed change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mcp_rollout.mcp_servers.kit import Message, Score
from mcp_rollout.mcp_servers.kit.records import texts_for_user
from mcp_rollout.mcp_servers.retail.case import Case
from mcp_rollout.mcp_servers.retail.database import diff
from mcp_rollout.mcp_servers.retail.score import is_looked_up, is_stated, required_changes, values_in, weighted
from mcp_rollout.mcp_servers.retail.script import Request, Say, Turn
from mcp_rollout.mcp_servers.retail.shop import Shop


@dataclass(frozen=True, kw_only=True, slots=True)
class ShortCase(Case):
    alternatives: tuple[Request, ...] = ()
    """Requests that satisfy the customer as well as `requests`."""

    @property
    def opening(self) -> str:
        return f"{self.greeting} {self.requests[0].text}"

    def turns(self) -> tuple[Turn, ...]:
        *turns, report = self.requests[0].turns
        assert isinstance(report, Say)
        return (*turns, replace(report, answer=self.closing))


def score(case: ShortCase, shop: Shop, messages: Sequence[Message]) -> Score:
    """That of the way which serves the customer best, with the parts of retail."""
    ways = [case, *(replace(case, requests=(request,)) for request in case.alternatives)]
    return max((_score(way, shop, messages) for way in ways), key=lambda score: score.score)


def _score(case: ShortCase, shop: Shop, messages: Sequence[Message]) -> Score:
    """No outcome is recorded, and no consent is asked for.

    A statement counts only after the required change, without any other day or amount, and if it was looked up, so
    that guessing a day scores 0. Trying more steps than the expert does scores 0 too: which step fits is the decision
    to learn. Any reason of a cancellation is right, since no customer is asked for one.
    """
    if len(shop.tried) > sum(not isinstance(turn, Say) for turn in case.turns()[1:]):
        return weighted(0.0, 0.0)
    required, made = (
        {(path, value) for path, value in changes if not path.endswith("/cancel_reason")}
        for changes in (required_changes(case), diff(case.database, shop.database))
    )
    texts = texts_for_user(messages)
    allowed = sum(statement.is_value for statement in case.statements)
    told = (
        made == required
        and all(is_looked_up(statement, shop) and is_stated(statement, texts) for statement in case.statements)
        and len(values_in(texts)) <= allowed
    )
    return weighted(float(made == required and (bool(required) or told)), float(told))
