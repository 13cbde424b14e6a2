"""What a lease is requested with: the same for servers, for recording them, and for a cassette."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from gateway.types import ToolDefinition

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
