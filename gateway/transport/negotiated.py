"""What a connection is given to connect to, and the protocol that earlier connections to its server negotiated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import mcp_types as mcp
from mcp import Client

from mcp_rollout.gateway.config.models import ServerConfig
from mcp_rollout.gateway.transport.tool_definitions import Listing

Connect = Callable[[ServerConfig, str], Any]
"""The seam for tests and embedders: what `mcp.Client` connects to for a server, called once per connection."""


@dataclass(slots=True)
class NegotiatedProtocol:
    """What the first connection to a server negotiated, so that the next ones need not ask."""

    mode: str = "auto"
    first: str = "auto"
    """The mode of a connection that knows of no earlier one."""
    discover: mcp.DiscoverResult | None = None
    listing: Listing = field(default_factory=Listing)

    def learn(self, client: Client, mode: str) -> None:
        """Take over what a connection in `mode` negotiated."""
        if mode == "legacy" and self.mode == "auto":  # its program did not survive the other era
            self.first = mode
        self.discover = client.session.discover_result
        self.mode = client.protocol_version if self.discover is not None else "legacy"

    def forget(self) -> None:
        # The connection that failed may have met another version of the server: the next one negotiates from the start.
        self.mode, self.discover = self.first, None


@dataclass(frozen=True, slots=True)
class Target:
    """What `mcp.Client` is given, and what its transport does for the connection."""

    transport: Any
    notes_delivery: bool
    """Whether it notes on a `Delivery` when a request leaves, and passes notifications to the link itself."""
