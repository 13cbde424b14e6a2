"""What is asked of a lease and of its calls: the same for servers, for recording them, and for a cassette."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gateway.types import ToolDefinition

if TYPE_CHECKING:
    from gateway.connection.in_flight import InFlightCall

Identity = Mapping[str, str | int | bool]
"""What distinguishes the trajectories of a task: `sample`, `attempt`, ..."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseRequest:
    """What `Gateway.lease` was asked for."""

    trajectory: str
    task: str | None
    seed: int
    tools: Mapping[str, ToolDefinition]
    """Those that the policy may use, by exposed name, with those of `later_tools`."""
    later_tools: Collection[str] = ()
    identity: Identity = field(default_factory=dict[str, str | int | bool])
    resets: bool = False
    """Without a task: whether the caller resets every server by `Session.reset`."""
    replaces: str = ""
    """For a recording: digest of the one that the trajectory was replayed from until it differed."""

    @property
    def shown_tools(self) -> Mapping[str, ToolDefinition]:
        """The tools that may be used from the beginning."""
        return MappingProxyType({name: tool for name, tool in self.tools.items() if name not in self.later_tools})

    @property
    def hidden_tools(self) -> Mapping[str, ToolDefinition]:
        """The tools that may be used once `Session.reveal` names them."""
        return MappingProxyType({name: tool for name, tool in self.tools.items() if name in self.later_tools})


@dataclass(slots=True)
class OutgoingCall:
    """One call of a session. Not frozen: one is made for each call, and that takes a third of the time."""

    tool: ToolDefinition
    arguments: Mapping[str, Any]
    timeout_s: float
    in_flight: Callable[[], InFlightCall]
    """Makes the record of one attempt."""
