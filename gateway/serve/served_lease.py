"""One lease of a served gateway, as its handle or its address names it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from gateway.errors import GatewayError
    from gateway.leases.session import Session
    from gateway.serve.bearers import Bearer
    from gateway.serve.calls import LeasedCalls
    from gateway.serve.client_gateways import ClientGateway
    from gateway.types import ToolDefinition


class ServedLease:
    """One lease: a task of its own holds the gateway's session until it is over.

    Args:
        key: Of the request that opened it; empty for an MCP client's, which has none to repeat.
        calls: Those of its trainer.
        client: What it is to MCP clients, and leased from.
        address: Where MCP clients find its world; None for a world without an address.
        is_clients: Whether it is an MCP client's world: then the policy's tools are all that it gives access to.
    """

    def __init__(
        self,
        key: str,
        trajectory: str,
        calls: LeasedCalls,
        *,
        bearer: Bearer,
        client: ClientGateway,
        address: str | None,
        is_clients: bool,
    ) -> None:
        self.handle = secrets.token_urlsafe(24)
        self.key, self.bearer, self.trajectory = key or self.handle, bearer, trajectory
        self.client, self.address, self.is_clients = client, address, is_clients
        self.used_at = anyio.current_time()
        """When the last request for it began or ended."""
        self.requests = self.sessions = 0
        """Under way; sessions of MCP clients and subscriptions, which may be silent."""
        self.settled, self.over, self.done = anyio.Event(), anyio.Event(), anyio.Event()
        """It was granted or refused; it is to end; its world is released."""
        self.scope = anyio.CancelScope()
        self.session: Session | None = None
        self.error: GatewayError | None = None
        """Why it was not granted."""
        self.calls = calls
        self.tools: Mapping[tuple[str, str], ToolDefinition] = {}

    @property
    def world(self) -> str:
        """What MCP clients know it by. Not a lease's handle: with that its bearer calls the harness's tools."""
        return self.handle if self.is_clients else str(self.address)

    def used(self) -> None:
        """Renew it."""
        self.used_at = anyio.current_time()

    def end(self) -> None:
        """Cancel its calls and let its task release the world; return at once."""
        self.over.set()
        self.calls.close()
        # Once granted, its task is not cancelled: it waits for the calls to end, and then leaves the gateway's lease.
        if self.session is None:
            self.scope.cancel()
