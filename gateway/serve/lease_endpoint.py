"""The endpoint for another gateway: the methods of the lease extension, and `tools/call` within a lease."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import Any

from pydantic import TypeAdapter

from mcp_rollout.gateway.connection.answerers import requests_answered
from mcp_rollout.gateway.errors import GatewayError
from mcp_rollout.gateway.remote.names import (
    CALL_META,
    CANCEL,
    CATALOGUE,
    CHECK,
    CLOSE,
    LEASE_META,
    OPEN,
    RENEW,
    SERVER_META,
    Offer,
    OfferedServer,
)
from mcp_rollout.gateway.remote.outcome import encoded_result, failed, succeeded
from mcp_rollout.gateway.serve.bearers import Bearer, Counts
from mcp_rollout.gateway.serve.client_gateways import ServedGateway
from mcp_rollout.gateway.serve.config import ServeConfig
from mcp_rollout.gateway.serve.leases import ServedLeases
from mcp_rollout.gateway.serve.params import InvalidParams, Params
from mcp_rollout.gateway.serve.served_lease import ServedLease
from mcp_rollout.gateway.server_events import ServerEvents
from mcp_rollout.gateway.types import ServerIdentity, ToolDefinition

Json = dict[str, Any]
Method = Callable[[Params, Bearer], Awaitable[bytes]]

_OFFER: TypeAdapter[Offer] = TypeAdapter(Offer)


class LeaseEndpoint:
    """Answers as the members `"result": …` or `"error": …` of a JSON-RPC response, in bytes."""

    def __init__(self, gateway: ServedGateway, config: ServeConfig, leases: ServedLeases, counts: Counts) -> None:
        self._gateway, self._config, self._leases, self._counts = gateway, config, leases, counts
        self.methods: Mapping[str, Method] = {
            CATALOGUE: self._catalogue,
            OPEN: self._open,
            RENEW: self._renew,
            CHECK: self._check,
            CANCEL: self._cancel,
            CLOSE: self._close,
        }

    async def call(self, params: Params, bearer: Bearer) -> bytes:
        """`tools/call` with the handle of a lease: any tool, the harness's too, by its server's own name for it."""
        meta = Params(params.object("_meta"))
        lease = self._leases.find(meta.text(LEASE_META), bearer)
        place = self._server(meta, lease), params.text("name")
        tool = lease.tools.get(place)
        if tool is None:
            raise InvalidParams(f"no tool {'/'.join(place)}")
        arguments = params.object("arguments")
        lease.requests += 1
        try:
            # Failures of the servers are outcomes, too: a repeated request gets the same one, and nothing runs twice.
            return await lease.calls.once(meta.text(CALL_META), place, lambda: self._execute(lease, tool, arguments))
        finally:
            lease.requests -= 1
            lease.used()

    def _server(self, meta: Params, lease: ServedLease) -> str:
        # A client of one server need not know its name there.
        servers = {server for server, _ in lease.tools}
        return meta.text(SERVER_META) if len(servers) != 1 or meta.has(SERVER_META) else servers.pop()

    async def _execute(self, lease: ServedLease, tool: ToolDefinition, arguments: Json) -> bytes:
        assert lease.session is not None
        events = ServerEvents()
        try:
            result = await lease.session.send(tool, arguments, events)
        except GatewayError as error:
            self._counts.calls[error.code] += 1
            return failed(error, events=events)
        self._counts.calls["error_result" if result.is_error else "result"] += 1
        return succeeded(encoded_result(result, events))

    async def _catalogue(self, params: Params, bearer: Bearer) -> bytes:
        # Made once: a server that changes its tools is not leased any more.
        return self._offer

    @cached_property
    def _offer(self) -> bytes:
        gateway = self._gateway
        servers = {
            server: OfferedServer(
                tools=tools,
                instructions=gateway.instructions.get(server, ""),
                identity=gateway.identities.get(server, ServerIdentity()),
                malformed=gateway.malformed.get(server, ()),
                call_timeout_s=gateway.config.servers[server].call_timeout_s,
            )
            for server, tools in gateway.catalogue.items()
        }
        _, patience_s = requests_answered(gateway.config)
        process = self._leases.process
        patience_s *= gateway.config.max_requests_per_call
        offer = Offer(servers=servers, idle_s=self._config.idle_s, patience_s=patience_s, process=process)
        return succeeded({**_OFFER.dump_python(offer, mode="json"), "resultType": "complete"})

    async def _open(self, params: Params, bearer: Bearer) -> bytes:
        return succeeded({**await self._leases.open(params, bearer), "resultType": "complete"})

    async def _renew(self, params: Params, bearer: Bearer) -> bytes:
        lost = self._leases.renew(params.texts("leases") or [], bearer)
        return succeeded({"lost": lost, "resultType": "complete"})

    async def _check(self, params: Params, bearer: Bearer) -> bytes:
        lease = self._leases.find(Params(params.object("_meta")).text(LEASE_META), bearer)
        # One that waits has no connections, and is granted none whose tools have changed.
        if lease.session is not None:
            await lease.session.wait_for_tool_changes()
        return _DONE

    async def _cancel(self, params: Params, bearer: Bearer) -> bytes:
        meta = Params(params.object("_meta"))
        self._leases.find(meta.text(LEASE_META), bearer).calls.cancel(meta.text(CALL_META))
        return _DONE

    async def _close(self, params: Params, bearer: Bearer) -> bytes:
        await self._leases.close(Params(params.object("_meta")).text(LEASE_META), bearer)
        return _DONE


_DONE = succeeded({"resultType": "complete"})
