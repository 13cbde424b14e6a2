"""What passing an MCP client's requests to a server needs: the request, the way back, and a server's own error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from mcp_rollout.gateway.types import OWN_PREFIX

Json = dict[str, Any]


def without_own(value: Any) -> Any:
    """What a client wrote, without every member that only gateways may write: a trajectory, a seed, a reward."""
    if isinstance(value, dict):
        given = cast("Json", value)
        return {name: without_own(each) for name, each in given.items() if not name.startswith(OWN_PREFIX)}
    return [without_own(each) for each in cast("list[Any]", value)] if isinstance(value, list) else value


class ErrorAnswer(Exception):
    """A JSON-RPC error as its sender wrote it.

    Args:
        error: `code`, `message` and perhaps `data`.
    """

    def __init__(self, error: Json) -> None:
        super().__init__(str(error.get("message")))
        self.error = error


class Relay(Protocol):
    """The way to the client on whose behalf a request is forwarded."""

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Pass a notification of the server, as it was sent."""
        ...

    async def request(self, method: str, params: Json) -> Json:
        """The client's result of a request of the server.

        Raises:
            ErrorAnswer: the client's error, or why it was not asked.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardedRequest:
    """A request that goes to the server as its client wrote it, but for `without_own`."""

    method: str
    params: Json
    """Without `_meta`."""
    meta: Json = field(default_factory=dict[str, Any])
    """Members of `_meta`, which are sent instead of this gateway's own."""
    without: frozenset[str] = frozenset()
    """Members of `_meta` that this gateway does not add."""
    timeout_s: float
    """`math.inf` for a request that is a subscription."""
    relay: Relay
    wants_progress: bool = False
