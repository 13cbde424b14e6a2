"""What the customer was told, and how much of it counts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from mcp_servers.kit import Message
from mcp_servers.retail.consent import told_after_no
from mcp_servers.retail.desk import Desk
from mcp_servers.retail.parts import Telling

MAX_TOLD_CHARACTERS = 1500
"""A longer message tells nothing: no customer reads it."""

_RECORD = re.compile(r'"\w+"\s*:')
"""A tool's result read out as it came. It tells nothing either: which of it answers the customer was left open."""

_VALUES = re.compile(r"\d[\d,]*\.\d\d(?!\d)|\d{4}-\d\d-\d\d|\bTRK\d+")


def values_in(texts: Iterable[str]) -> set[str]:
    """The amounts, days and tracking codes in these texts."""
    return {value for text in texts for value in _VALUES.findall(text)}


def is_looked_up(telling: Telling, desk: Desk) -> bool:
    return all(any(source in desk.answered for source in sources) for sources in telling.looked_up)


def is_said(telling: Telling, texts: Iterable[str]) -> bool:
    """Whether one of the texts, which a customer would read, contains all of it."""
    return any(
        all(re.search(pattern, text, re.IGNORECASE) for pattern in telling.patterns)
        for text in texts
        if len(text) <= MAX_TOLD_CHARACTERS and not _RECORD.search(text)
    )


def told(tellings: Sequence[Telling], desk: Desk, messages: Sequence[Message]) -> list[float]:
    """For each telling, what it counts, 0 to 1.

    A value counts only if it was looked up and stands in a message with few others. The more values were told in all,
    the less each counts: up to twice as many as are needed and one more are free, and with twice that many none counts.
    """
    said = [message.text for message in messages if message.is_told]
    free = 2 * sum(telling.is_value for telling in tellings) + 1
    values = values_in(text.replace(",", "") for text in said)
    precision = min(1.0, max(0.0, 2 - len(values) / free))
    counts: list[float] = []
    for telling in tellings:
        texts = said if telling.refused is None else list(told_after_no(messages, telling.refused))
        if telling.is_value:
            texts = [text for text in texts if len(values_in([text])) <= 1 + telling.beside]
        hit = is_looked_up(telling, desk) and is_said(telling, texts)
        counts.append(hit * (precision if telling.is_value else 1.0))
    return counts
