"""Events of servers within calls: their requests, with the answers, and their notifications, shortened to be kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, cast


class RequestKind(StrEnum):
    """The kind of a request that a server makes within a call."""

    ELICITATION = "elicitation"
    """A question to the user, with a schema for the answer."""
    SAMPLING = "sampling"
    """A completion by the client's model."""


@dataclass(kw_only=True, slots=True)
class ServerRequest:
    """A request of a server within a call, and its answer."""

    server: str
    tool: str
    kind: RequestKind
    asked: dict[str, Any]
    """The request's parameters, long values cut; a mark that begins with `…` shows what is missing."""
    answer: dict[str, Any] | None = None
    """The answer, cut in the same way."""
    refused: str | None = None
    """Why the request was refused."""
    elapsed_s: float = 0.0


class NotificationKind(StrEnum):
    PROGRESS = "progress"
    LOG = "log"


@dataclass(kw_only=True, slots=True)
class Notification:
    """A progress or log message of a server within a call."""

    server: str
    tool: str
    kind: NotificationKind
    text: str
    """The message; long ones are cut."""
    level: str | None = None
    progress: float | None = None
    total: float | None = None


@dataclass(kw_only=True)
class ServerEvents:
    """Requests and notifications of servers within calls, up to a bound; beyond it they are only counted."""

    requests: list[ServerRequest] = field(default_factory=list[ServerRequest])
    notifications: list[Notification] = field(default_factory=list[Notification])
    more_requests: int = 0
    more_notifications: int = 0

    MAX_REQUESTS: ClassVar[int] = 100
    MAX_NOTIFICATIONS: ClassVar[int] = 50

    def add_request(self, request: ServerRequest) -> None:
        if len(self.requests) < self.MAX_REQUESTS:
            self.requests.append(request)
        else:
            self.more_requests += 1

    def add(self, other: ServerEvents) -> None:
        for request in other.requests:
            self.add_request(request)
        room = max(0, self.MAX_NOTIFICATIONS - len(self.notifications))
        self.notifications += other.notifications[:room]
        self.more_notifications += other.more_notifications + len(other.notifications[room:])
        self.more_requests += other.more_requests


MOST_CHARACTERS = 8192
_NODE = 4
"""What a value that is not a string counts as, in characters."""
_DEEPEST = 30


def shortened(value: Any, most: int = MOST_CHARACTERS) -> Any:
    """A JSON value with about `most` characters in it; the same value where it has no more. Marks begin with `…`."""
    return _Shortening(most).cut(value, _DEEPEST)


def cut_text(text: str, most: int) -> str:
    """A text of `most` characters and a mark that says how many are missing."""
    return text if len(text) <= most else f"{text[:most]}…[{len(text) - most} characters cut]"


class _Shortening:
    def __init__(self, room: int) -> None:
        self._room = room

    def cut(self, value: Any, levels: int) -> Any:
        if isinstance(value, str):
            kept = cut_text(value, max(0, self._room))
            self._room -= len(value)
            return kept
        self._room -= _NODE
        if isinstance(value, Mapping):
            return self._members(cast("Mapping[str, Any]", value), levels)
        if isinstance(value, list):
            return self._items(cast("list[Any]", value), levels)
        return value

    def _members(self, members: Mapping[str, Any], levels: int) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for name, inner in members.items():
            if self._room <= 0 or not levels:
                return {**kept, "…": f"{len(members) - len(kept)} more"}
            self._room -= len(name)
            kept[cut_text(name, MOST_CHARACTERS)] = self.cut(inner, levels - 1)
        return kept

    def _items(self, items: list[Any], levels: int) -> list[Any]:
        kept: list[Any] = []
        for inner in items:
            if self._room <= 0 or not levels:
                return [*kept, f"…[{len(items) - len(kept)} more]"]
            kept.append(self.cut(inner, levels - 1))
        return kept
