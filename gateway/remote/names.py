"""The names of the lease extension on the wire, and what a host offers by it; docs/serve.md describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from mcp_rollout.gateway.config.calls import Seconds
from mcp_rollout.gateway.types import LEASE_EXTENSION, ServerIdentity, ToolDefinition

EXTENSION = LEASE_EXTENSION
"""Under `capabilities.extensions` of `server/discover`, and under `capabilities.experimental` of `initialize`."""
VERSION = 1
"""Of the extension; both sides have to speak the same."""

CATALOGUE = "mcp-rollout/leases/catalogue"
OPEN = "mcp-rollout/leases/open"
RENEW = "mcp-rollout/leases/renew"
CHECK = "mcp-rollout/leases/check"
CANCEL = "mcp-rollout/leases/cancel"
CLOSE = "mcp-rollout/leases/close"

LEASE_META = "mcp-rollout/lease"
"""In a request's `_meta`: the handle of the lease that it belongs to."""
CALL_META = "mcp-rollout/call"
"""In the `_meta` of a `tools/call`: its idempotency key. A repeated key gets the outcome of the first request."""
SERVER_META = "mcp-rollout/server"
"""In the `_meta` of a `tools/call`: the server of the tool, where the catalogue has several."""
OUTCOME_META = "mcp-rollout/outcome"
"""In a result's `_meta`: what the call's result does not say, as in `gateway.remote.outcome`."""
FAILURE = "mcp-rollout/failure"
"""In the `data` of an error: a `gateway.errors.Failure`."""

PROTOCOL = "2026-07-28"
"""The protocol version of requests between gateways; it has no sessions."""
PROTOCOL_META = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_META = "io.modelcontextprotocol/clientCapabilities"
CLIENT_META = "io.modelcontextprotocol/clientInfo"


@dataclass(frozen=True, kw_only=True, slots=True)
class OfferedServer:
    """One server of a host's gateway."""

    tools: tuple[ToolDefinition, ...] = ()
    """Harness tools included."""
    instructions: str = ""
    identity: ServerIdentity = field(default_factory=ServerIdentity)
    malformed: tuple[str, ...] = ()
    call_timeout_s: Seconds = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """What a host's gateway serves."""

    servers: Mapping[str, OfferedServer]
    idle_s: Seconds
    """After so many seconds without a request for it, the host frees a lease."""
    patience_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """How much longer than its server's `call_timeout_s` a call may take, while requests of the server are answered."""
    process: str = ""
    """Another one where the host was started again, possibly with other servers."""
