"""The names of the lease extension on the wire; docs/serve.md describes it."""

from __future__ import annotations

from gateway.types import LEASE_EXTENSION

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
