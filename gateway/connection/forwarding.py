"""Send a client's request of any method to a server, once, and return the server's result as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from mcp import MCPError
from mcp.client.session import ClientSession
from mcp_types import CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY, PROTOCOL_VERSION_META_KEY
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from mcp_rollout.gateway import sdk
from mcp_rollout.gateway.connection.calls import Calls
from mcp_rollout.gateway.connection.deadline import Deadline
from mcp_rollout.gateway.connection.failures import as_error
from mcp_rollout.gateway.connection.in_flight import InFlightCall, InFlightCalls
from mcp_rollout.gateway.connection.redaction import Redactor
from mcp_rollout.gateway.connection.relay import ErrorAnswer, ForwardedRequest, Json, without_own
from mcp_rollout.gateway.errors import CallTimeout, GatewayError
from mcp_rollout.gateway.transport.delivery import GatewayAnswer
from mcp_rollout.gateway.transport.link import Link

_ENVELOPE = (PROTOCOL_VERSION_META_KEY, CLIENT_INFO_META_KEY, CLIENT_CAPABILITIES_META_KEY)
"""What 2026-07-28 says in `_meta` of each request, and the handshake once."""


class Forwarding:
    """Forwards requests of MCP clients over one connection."""

    def __init__(self, server: str, link: Link, calls: Calls, in_flight: InFlightCalls, redactor: Redactor) -> None:
        self._server, self._link = server, link
        self._calls, self._in_flight, self._redactor = calls, in_flight, redactor

    async def send(self, request: ForwardedRequest, *, meta: Mapping[str, Any], trajectory: str) -> Json:
        """Send an MCP client's request, once; returns the raw result without secrets.

        Args:
            meta: Added to the request's `_meta`, where the client has no say: the lease's trajectory and seed.

        Raises:
            ErrorAnswer: the server's answer is an error.
            GatewayError: as `Connection.call`.
        """
        try:
            with InFlightCall(
                server=self._server, tool=request.method, trajectory=trajectory, relay=request.relay
            ) as call:
                return self._redactor.json(await self._send(request, meta, call))
        except GatewayError as error:
            raise self._redactor.error(error) from error.__cause__
        except ErrorAnswer as answer:
            raise ErrorAnswer(self._redactor.json(answer.error)) from answer.__cause__

    async def _send(self, request: ForwardedRequest, meta: Mapping[str, Any], call: InFlightCall) -> Json:
        where = {"server": self._server, "tool": request.method}
        session = self._calls.open_session(**where)
        if not self._calls.notes_delivery:
            call.left = True
        token = self._in_flight.open(call)
        with Deadline(self._calls.deadlines(request.timeout_s)) as call.deadline:
            try:
                return await self._answer(session, request, meta, call, token)
            except self._calls.failures as error:
                said = self._error_of_the_server(error, call)
                # Never repeatable here: only the client knows whether its request may run twice.
                outcome = await self._calls.outcome(error, call, repeatable=False, **where)
                if said is not None and call.broke is None:
                    raise ErrorAnswer(said) from error
                raise as_error(outcome, **where) from error
            finally:
                del self._in_flight.running[token]
        self._calls.on_timeout()
        raise CallTimeout(f"no answer within {request.timeout_s:g} s", **where)

    async def _answer(
        self, session: ClientSession, request: ForwardedRequest, meta: Mapping[str, Any], call: InFlightCall, token: int
    ) -> Json:
        given: Json = without_own(request.meta)
        if session.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS:  # where servers of both eras refuse an envelope
            given = {name: each for name, each in given.items() if name not in _ENVELOPE}
        # Arguments are the tool's own; what else a client writes can have members of `_meta`, as its answers have.
        params = {name: each if name == "arguments" else without_own(each) for name, each in request.params.items()}
        stamped: Json = {"method": request.method, "params": {**params, "_meta": {**meta, **given}}}
        options = sdk.stamp(session, stamped)
        # Over the session's own stamp: what the client says of itself is what the server is to act on.
        own = cast("Json", stamped["params"]["_meta"])
        for name in request.without - given.keys():
            own.pop(name, None)
        own.update(given)

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            said = {"progress": progress, "total": total, "message": message}
            known = {name: value for name, value in said.items() if value is not None}
            request.relay.notify("notifications/progress", self._redactor.json(known))

        if request.wants_progress:
            own["progressToken"] = token
        wanted = request.wants_progress and not self._calls.notes_delivery
        headers = options.get("headers") or {}
        return await self._link.channel.send(session, stamped, headers, call, on_progress if wanted else None)

    def _error_of_the_server(self, error: Exception, call: InFlightCall) -> Json | None:
        """The error that the server answered with; None if there was no answer."""
        # A transport's error in place of an answer that could not be used is not the server's answer.
        if not isinstance(error, MCPError) or isinstance(error.error.data, GatewayAnswer):
            return None
        if call.broke is not None or self._link.down or self._calls.closed_by_mcp(error):
            return None
        return error.error.model_dump(exclude_none=True)
