"""The gateways that MCP clients' worlds come from: one for each protocol era, opened for its first client."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, cast

import anyio
import structlog
from anyio.abc import TaskGroup, TaskStatus

from mcp_rollout.gateway.catalogue.names import policy_tools
from mcp_rollout.gateway.config.models import GatewayConfig, Kind
from mcp_rollout.gateway.connection.connection import Connection
from mcp_rollout.gateway.connection.pages import pages
from mcp_rollout.gateway.connection.relay import ErrorAnswer, ForwardedRequest, Json
from mcp_rollout.gateway.errors import ConfigError, GatewayError
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.gateway.leases.taking import SharedAttempt
from mcp_rollout.gateway.types import Scope, ServerIdentity, ToolDefinition

log = structlog.get_logger(__name__)


class Era(StrEnum):
    """An era of the protocol, as mcp's mode of connections for its clients.

    Servers that speak both are connected to as their client is, so that what they send can be passed as it is.
    """

    HANDSHAKE = "legacy"
    MODERN = "auto"


class ServedGateway(AbstractAsyncContextManager[Any], Protocol):
    """What serving needs of a `gateway.gateway.Gateway`, whose attributes these are."""

    @property
    def config(self) -> GatewayConfig: ...

    @property
    def catalogue(self) -> Mapping[str, tuple[ToolDefinition, ...]]: ...

    @property
    def instructions(self) -> Mapping[str, str]: ...

    @property
    def identities(self) -> Mapping[str, ServerIdentity]: ...

    @property
    def malformed(self) -> Mapping[str, tuple[str, ...]]: ...

    @property
    def failures(self) -> Mapping[str, GatewayError]: ...

    @property
    def connections(self) -> Collection[Connection]: ...

    @property
    def places(self) -> int: ...

    def for_clients(self, config: GatewayConfig, relay_mode: str) -> ServedGateway | None: ...

    def lease(
        self, *, trajectory: str, task: str | None, seed: int, tools: Collection[str] | None = None, resets: bool = ...
    ) -> AbstractAsyncContextManager[Session]: ...


@dataclass(frozen=True, kw_only=True)
class ClientGateway:
    """An entered gateway, and what its servers offer to MCP clients."""

    gateway: ServedGateway
    relays: bool = False
    """Whether calls pass as they are. Not where the servers are on other hosts, or replayed."""
    capabilities: Mapping[str, Json]
    """By server, as it declared them."""
    tools: Mapping[str, Json]
    """The policy's, by exposed name, in the protocol's form."""

    @classmethod
    def of_tools(cls, gateway: ServedGateway) -> ClientGateway:
        """A gateway of which clients get the policy's tools alone."""
        return cls(gateway=gateway, capabilities={}, tools=_tools(gateway, {}))

    @property
    def whole(self) -> str | None:
        """The server that all requests pass to, where there is one alone; of several, tools are served."""
        return next(iter(self.capabilities)) if len(self.capabilities) == 1 else None

    def described(self, *, pushes: bool, **own: Json) -> Json:
        """Capabilities and instructions.

        Args:
            pushes: Whether the client's era has a way for what servers send outside of requests.
            own: Capabilities of this server's own.
        """
        declared = self.capabilities[self.whole] if self.whole is not None else {}
        capabilities: Json = {name: options if pushes else {} for name, options in declared.items()}
        told = {server: text for server, text in self.gateway.instructions.items() if text}
        parts = [text if len(told) == 1 else f"# {server}\n{text}" for server, text in told.items()]
        instructions = {"instructions": "\n\n".join(parts)} if parts else {}
        return {"capabilities": {"tools": {}, **capabilities, **own}, **instructions}


class ClientGateways:
    """Opens and holds them. They end with the task group."""

    def __init__(self, gateway: ServedGateway, tasks: TaskGroup) -> None:
        self._gateway, self._tasks = gateway, tasks
        self._open: dict[Era, ClientGateway] = {}
        self._opening = SharedAttempt()

    def opened(self, era: Era) -> ClientGateway:
        """The one that `open` has opened."""
        return self._open[era]

    async def open(self, era: Era) -> None:
        """Open the gateway for clients of this era, if it is not open yet. Raises `GatewayError`, `ConfigError`."""
        if era in self._open:
            return
        # Clients that come while servers start share them; each start has its bound.
        async with self._opening.alone():
            if era not in self._open:
                self._open[era] = await self._opened(era)

    async def _opened(self, era: Era) -> ClientGateway:
        base = self._gateway
        made = base.for_clients(_config(base.config, era), era)
        if made is None:
            return ClientGateway.of_tools(base)
        try:
            # In a task of the server's: a gateway is left by the task that entered it, and outlives this request.
            opened: ClientGateway = await self._tasks.start(self._hold, made, base.failures.keys())
        except (GatewayError, ConfigError) as error:
            if era is Era.MODERN:
                raise
            # A server that knows no handshake.
            log.info("serve.no_handshake", problem=str(error))
            opened = self._open.get(Era.MODERN) or await self._opened(Era.MODERN)
            self._open[Era.MODERN] = opened
        return opened

    async def _hold(
        self, gateway: ServedGateway, may_fail: Collection[str], *, task_status: TaskStatus[ClientGateway]
    ) -> None:
        async with gateway:
            for server, error in gateway.failures.items():
                if server not in may_fail:
                    # The same servers have started for gateways: a client must not find a part of them missing.
                    raise error
            connections = {connection.server: connection for connection in gateway.connections}
            listed = {server: await _listed(connection) for server, connection in connections.items()}
            capabilities = {server: connection.capabilities for server, connection in connections.items()}
            task_status.started(
                ClientGateway(
                    gateway=gateway,
                    relays=True,
                    capabilities=capabilities,
                    tools=_tools(gateway, listed),
                )
            )
            await anyio.sleep_forever()


def _config(config: GatewayConfig, era: Era) -> GatewayConfig:
    """The same servers without warm processes; in the handshake's era each session has a connection of its own."""
    servers = dict(config.servers)
    for name, entry in servers.items():
        changed: dict[str, Any] = {"min_ready": 0}
        if era is Era.HANDSHAKE and entry.kind in (Kind.HTTP, Kind.SSE) and entry.scope is Scope.SHARED:
            changed["scope"] = Scope.SESSION
        servers[name] = entry.model_copy(update=changed)
    return config.model_copy(update={"servers": servers})


async def _listed(connection: Connection) -> dict[str, Json]:
    """A server's tools by its own names, as it lists them. Raises `GatewayError`."""
    tools: dict[str, Json] = {}

    async def ask(params: Json) -> Json:
        bound = connection.config.start_timeout_s
        asked = ForwardedRequest(method="tools/list", params=params, timeout_s=bound, relay=_NoClient())
        return await connection.forwarding.send(asked, meta={}, trajectory="")

    try:
        async for page in pages(ask, connection.config.max_message_bytes):
            for tool in cast("list[Json]", page.get("tools") or []):
                tools.setdefault(str(tool.get("name")), tool)
    except (ErrorAnswer, ValueError):  # the catalogue has what was listed at the start
        pass
    return tools


def _tools(gateway: ServedGateway, listed: Mapping[str, Mapping[str, Json]]) -> dict[str, Json]:
    tools = policy_tools(gateway.catalogue)
    return {tool.exposed_name: _shown(tool, listed.get(tool.server, {}).get(tool.name, {})) for tool in tools}


def _shown(tool: ToolDefinition, listed: Json) -> Json:
    """A tool in the protocol's form: what its server sent, under the name and with the changes of its entry."""
    shown: Json = {**listed, "name": tool.exposed_name, "inputSchema": tool.input_schema}
    if tool.description:
        shown["description"] = tool.description
    if tool.output_schema is not None:
        shown["outputSchema"] = tool.output_schema
    hints = {"readOnlyHint": tool.read_only, "idempotentHint": tool.idempotent}
    if any(hints.values()):
        own = cast("Json", listed.get("annotations") or {})
        shown["annotations"] = {**own, **{name: True for name, value in hints.items() if value}}
    return shown


class _NoClient:
    """No client: a listing of this program's own."""

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        pass

    async def request(self, method: str, params: Json) -> Json:
        raise ErrorAnswer({"code": -32601, "message": f"no client answers {method} here"})
