"""Filters of the page's address, as a condition for the index."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite

from mcp_rollout.gateway.errors import ConfigError

SPLITS = {"train": "NOT validate AND step IS NOT NULL", "held-out": "validate", "evaluation": "step IS NULL"}
TRUNCATED = ("turn_limit", "user_turn_limit", "tool_call_limit", "token_limit", "time_limit", "filtered", "bad_summary")
"""Stop reasons of trajectories that were cut, as `StopReason.is_truncated` says."""
UNREADABLE = "(unreadable call)"
"""The name of calls that have none, also as a filter's text: an empty text is not a filter."""


def quoted(text: str) -> str:
    """A text as an SQL expression; a null character would end a statement."""
    if "\0" in text:
        return f"CAST(X'{text.encode(errors='replace').hex()}' AS TEXT)"
    return "'" + text.encode(errors="replace").decode().replace("'", "''") + "'"


def _number(text: str) -> str:
    try:
        value = float(text)
    except ValueError as error:
        raise ConfigError(f"is not a number: {text[:40]!r}", key="filter") from error
    if not isfinite(value):
        raise ConfigError(f"is not a number: {text[:40]!r}", key="filter")
    return repr(value)


def _choice(column: str) -> Callable[[str], str]:
    return lambda text: f"{column} IN ({', '.join(quoted(each) for each in text.split(','))})"


def _has_key(column: str) -> Callable[[str], str]:
    key = f"coalesce(nullif(key, ''), {quoted(UNREADABLE)})"
    return lambda text: f"EXISTS (SELECT 1 FROM json_each({column}) WHERE {key} = {quoted(text)})"


def _split(text: str) -> str:
    if text not in SPLITS:
        raise ConfigError(f"there is no split {text[:40]!r}", key="split", remedy=f"one of {', '.join(SPLITS)}")
    return SPLITS[text]


def _expression(text: str) -> str:
    if "\0" in text:
        raise ConfigError("has a null character", key="where")
    return text


def _contains(text: str) -> str:
    # Of the first 200 characters of the first message.
    return f"instr(lower(id || ' ' || task || ' ' || text), lower({quoted(text)}))"


CONDITIONS: dict[str, Callable[[str], str]] = {
    "environment": _choice("environment"),
    "split": _split,
    "step_from": lambda text: f"step >= {_number(text)}",
    "step_to": lambda text: f"step <= {_number(text)}",
    "reward_from": lambda text: f"reward >= {_number(text)}",
    "reward_to": lambda text: f"reward <= {_number(text)}",
    "stop": _choice("stop_reason"),
    "task": lambda text: f"task = {quoted(text)}",
    "uid": lambda text: f"uid = {quoted(text)}",
    "tool": _has_key("calls"),
    "failed_tool": _has_key("errors"),
    "calls": lambda text: f"calls = {quoted(text)}",
    "mark": _has_key("marks"),
    "failure": _choice("failure"),
    "text": _contains,
    "where": lambda text: f"({_expression(text)}\n)",
}
"""Filters by name: a text becomes a condition over the index's columns."""


def condition(given: Mapping[str, str]) -> str | None:
    """The condition of all filters that are given; None without one.

    Args:
        given: texts by the names of `CONDITIONS`; other names and empty texts are ignored.

    Raises:
        ConfigError: a text is not such a filter.
    """
    parts = [f"({make(given[name])})" for name, make in CONDITIONS.items() if given.get(name)]
    return " AND ".join(parts) or None
