"""The face to any MCP client: mcp's server in front, and each request passed to the servers of the client's world."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.metadata import version
from typing import Any, cast

from anyio.abc import TaskGroup
from mcp import MCPError
from mcp.server.connection import Connection as ClientConnection
from mcp.server.context import CallNext, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, LOG_LEVEL_META_KEY
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic_core import to_json
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from mcp_rollout.gateway.connection.calls import MOST_ROUNDS
from mcp_rollout.gateway.connection.relay import ErrorAnswer, Json, Relay
from mcp_rollout.gateway.errors import ConfigError, GatewayError
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.gateway.remote.names import EXTENSION, VERSION
from mcp_rollout.gateway.sdk import connection_of
from mcp_rollout.gateway.serve.bearers import Bearer, Counts, Refused
from mcp_rollout.gateway.serve.client_calls import RunningCalls
from mcp_rollout.gateway.serve.client_gateways import ClientGateway, ClientGateways, Era
from mcp_rollout.gateway.serve.client_parked import ParkedRequests
from mcp_rollout.gateway.serve.client_relay import ClientRelay, relay_of
from mcp_rollout.gateway.serve.client_sessions import ClientSessions, RecentEvents, user_of
from mcp_rollout.gateway.serve.client_world import (
    CACHE,
    WORLD_META,
    WorldRequest,
    enveloped,
    error_of,
    in_era,
    joined_state,
    split_state,
)
from mcp_rollout.gateway.serve.config import ServeConfig
from mcp_rollout.gateway.serve.leases import NO_LEASE, ServedLeases
from mcp_rollout.gateway.serve.served_lease import ServedLease
from mcp_rollout.gateway.transport.messages import is_message, read_json
from mcp_rollout.gateway.types import Scope

Context = ServerRequestContext[Any, Any]

_BEARER, _ADDRESS, _PLACE = "mcp_rollout.bearer", "mcp_rollout.address", "mcp_rollout.place"
_TOLD = frozenset(("notifications/roots/list_changed",))
"""A client's notifications that are passed."""
_EXTENSIONS: Json = {EXTENSION: {"version": VERSION}}


class ClientFace:
    """Answers MCP clients of both protocol eras over HTTP."""

    def __init__(
        self,
        gateways: ClientGateways,
        leases: ServedLeases,
        config: ServeConfig,
        counts: Counts,
        tasks: TaskGroup,
    ) -> None:
        self._gateways, self._leases, self._counts, self._answer_s = gateways, leases, counts, config.answer_s
        self._calls, self._parked = RunningCalls(tasks, config), ParkedRequests(tasks, config.idle_s)
        self._open: dict[str, ClientConnection] = {}
        """Sessions of the handshake's era."""
        self._server: Server[Any] = Server(
            "mcp-rollout", version=version("mcp-rollout"), get_tool_input_schema=self._input_schema
        )
        self._server.middleware.append(self._answer)
        self.sessions = ClientSessions(self._server, config)

    async def serve(self, bearer: Bearer, address: str, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request of a bearer at an address. Raises `Refused`."""
        headers = dict(scope["headers"])
        spoken = headers.get(b"mcp-protocol-version", b"").decode("latin-1")
        connection = self._open.get(headers.get(b"mcp-session-id", b"").decode("latin-1"))
        if connection is not None and connection.state["address"] != address:
            raise Refused(404, "the session was begun at another address")
        if connection is not None and scope["method"] == "GET" and (last := headers.get(b"last-event-id")) is not None:
            # Not an empty stream, as behind a result: npm's SDK, which resumes behind an error, takes that for a stream
            # that broke, and opens a second one of its own. Python's would end with a 405, and does not ask for this.
            if connection.state["events"].is_error(last.decode("latin-1")):
                raise Refused(405, "the stream is over: its last event is the response")
        begins = b"mcp-session-id" not in headers and _era(spoken) is Era.HANDSHAKE
        if begins and bearer.sessions >= bearer.share.sessions:
            raise Refused(429, f"{bearer.sessions} sessions are open already (client_sessions)")
        known: AsgiScope = {**scope, _BEARER: bearer, _ADDRESS: address, _PLACE: begins, "user": user_of(bearer)}
        # Before anything is waited for: of requests that come at once, each finds the places of the others taken.
        bearer.sessions += begins
        try:
            # Here, since mcp's server asks for schemas by `_input_schema`, which cannot wait for servers to start.
            await self._gateways.open(_era(spoken))
            await self.sessions.handle_request(known, receive, send)
        except (GatewayError, ConfigError) as error:
            raise Refused(503, f"the servers for MCP clients did not start: {error}") from error
        finally:
            bearer.sessions -= known[_PLACE]

    def posted(
        self, bearer: Bearer, headers: Mapping[bytes, bytes], body: bytes, *, begun: bool
    ) -> AbstractContextManager[None]:
        """As `RunningCalls.posted`, for what is a request of a session.

        Raises:
            Refused: also beyond the bearer's calls, and for what mcp's server would refuse in words of its validator.
        """
        session = headers.get(b"mcp-session-id", b"").decode("latin-1")
        try:
            message = read_json(body)
        except (ValueError, RecursionError):  # mcp's server says so
            message = None
        if message is not None and not is_message(message):
            raise Refused(400, "the body is not a JSON-RPC request, notification or response")
        if not session:
            message = None
        number = message.get("id") if message is not None and "method" in message else None
        # Not where the request counts already: a call that has begun, or that waits for this answer or notification.
        if message is None or (number is not None and not (begun and self._calls.has(session, number))):
            bearer.check_calls()
        return nullcontext() if number is None else self._calls.posted(session, number, begun=begun)

    async def call(self, bearer: Bearer, address: str, headers: Mapping[bytes, bytes], message: Json) -> bytes | None:
        """The JSON-RPC response to a `tools/call` that needs no stream; None if mcp's server is to answer."""
        session = headers.get(b"mcp-session-id", b"").decode("latin-1")
        spoken = headers.get(b"mcp-protocol-version", b"").decode("latin-1")
        connection, number, params = self._open.get(session), message.get("id"), message.get("params")
        # mcp's server refuses what is not a request of an open session, in the words of the protocol.
        if connection is None or _era(spoken) is Era.MODERN or not isinstance(params, dict):
            return None
        lease: ServedLease | None = connection.state.get("lease")
        plain = message.get("method") == "tools/call" and isinstance(number, int | str) and not isinstance(number, bool)
        known = lease is not None and lease.bearer is bearer and connection.state["address"] == address
        if not plain or not known or not connection.initialize_accepted:
            return None
        bearer.check_calls()
        # mcp does not see this request, and would end the session as idle in the middle of the call.
        self.sessions.touch(session)
        given = cast("Json", params)

        async def begin(relay: Relay) -> Json:
            return await self._in_session(connection, "tools/call", given, relay)

        call = await self._calls.answer(session, number, begin)
        if call is None:
            return None
        try:
            member, outcome = "result", call.outcome()
        except (ErrorAnswer, GatewayError) as error:
            member, outcome = "error", error_of(error)
        return to_json({"jsonrpc": "2.0", "id": number, member: outcome})

    def _input_schema(self, name: str) -> Mapping[str, Any] | None:
        tool = self._gateways.opened(Era.MODERN).tools.get(name)
        return tool["inputSchema"] if tool is not None else None

    async def _answer(self, ctx: Context, call_next: CallNext) -> Any:
        """mcp's middleware: every request and notification of clients."""
        connection = connection_of(ctx)
        modern = connection.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS
        if ctx.request_id is None:
            # Not others: `initialized` was the gateway's to send, and progress names a token that no server has made.
            if ctx.method in _TOLD and "lease" in connection.state:
                await self._tell(connection, ctx)
            if ctx.method == "notifications/cancelled":
                # A call that mcp's server has not seen; it cancels its own by itself, in `call_next`.
                self._calls.cancel(connection.session_id or "", (ctx.params or {}).get("requestId"))
            return await call_next(ctx)
        try:
            # mcp's server answers these, or refuses them.
            if ctx.method == "ping" or (modern and ctx.method == "initialize"):
                return await call_next(ctx)
            at, bearer = _place(ctx)
            extensions = {} if at or bearer.is_client else _EXTENSIONS  # leases are not opened at a world's address
            if ctx.method == "initialize":
                # Before mcp's server accepts it: a session without a world would be one that is refused everything.
                if "lease" not in connection.state:
                    self._begin_session(connection, ctx)
                answer = cast("Json", await call_next(ctx))
                return {**answer, **connection.state["lease"].client.described(experimental=extensions)}
            if not modern and "lease" not in connection.state:
                raise ErrorAnswer({"code": INVALID_REQUEST, "message": "initialize the session first"})
            world = self._world(ctx)
            client = world.client if world else self._gateways.opened(Era.MODERN if modern else Era.HANDSHAKE)
            if ctx.method == "server/discover":
                return {**cast("Json", await call_next(ctx)), **client.described(extensions=extensions)}
            if ctx.method == "tools/list":
                listed: Json = {"tools": await self._tools(client, world)}
                return enveloped({**listed, **CACHE}) if modern else listed
            relay = relay_of(ctx, self._answer_s)
            if modern:
                return await relay.passing(self._in_world(ctx, relay))
            running = self._calls.take(connection.session_id or "", ctx.request_id)
            if running is not None:
                return await relay.passing(running.through(relay))
            return await relay.passing(self._in_session(connection, ctx.method, dict(ctx.params or {}), relay))
        except (ErrorAnswer, GatewayError) as broken:
            error = error_of(broken)
            raise MCPError(code=error["code"], message=error["message"], data=error.get("data")) from broken
        except Refused as refused:
            raise MCPError(code=INTERNAL_ERROR, message=refused.problem) from refused

    def _world(self, context: Context) -> ServedLease | None:
        """The world of a request: its session's, or that at its address; None if none has begun."""
        connection = connection_of(context)
        if "lease" in connection.state:
            return self._of_session(connection)
        return self._leases.at(*_place(context))

    async def _tools(self, client: ClientGateway, world: ServedLease | None) -> list[Json]:
        """As listed at the start, and without cursors: the tools of a world do not change while it lasts."""
        if world is None or world.is_clients:
            return list(client.tools.values())
        # A lease can be of some of the servers.
        return [client.tools[name] for name in (await self._leases.session_of(world)).tools]

    def _begin_session(self, connection: ClientConnection, context: Context) -> None:
        """Let a session that begins join the world at its address; without a name it leases one of its own."""
        connection.state["address"], bearer = _place(context)
        # Also of a session that is refused a world: mcp keeps it until it is idle.
        if (session := connection.session_id) is not None and session not in self._open:
            self._open[session] = connection
            cast("Any", context.request).scope[_PLACE] = False
            connection.exit_stack.callback(self._forget, session, bearer)
            events = connection.state["events"] = cast("RecentEvents", self.sessions.events_of(session))
            connection.exit_stack.callback(events.close)
        self._join(connection, bearer)

    def _forget(self, session: str, bearer: Bearer) -> None:
        del self._open[session]
        bearer.sessions -= 1

    def _join(self, connection: ClientConnection, bearer: Bearer) -> ServedLease:
        address: str = connection.state["address"]
        lease = self._leases.at(address, bearer)
        if lease is None or (lease.is_clients and not address):
            lease = self._leases.begin_for_client(bearer, self._gateways.opened(Era.HANDSHAKE), address or None)
        connection.state["lease"] = lease
        connection.state.pop("rest", None)
        lease.sessions += 1  # mcp's bound on idle sessions holds in place of that on leases
        # Returns at once: mcp unwinds the stack while it ends the session, and the release may take seconds.
        connection.exit_stack.callback(self._leave, lease)
        return lease

    def _leave(self, lease: ServedLease) -> None:
        lease.sessions -= 1
        lease.used()
        if lease.address is None:
            self._leases.end(lease)
        self._leases.end_if_unused(lease)

    def _of_session(self, connection: ClientConnection) -> ServedLease:
        """The world of a session. Where that at its address is over, another one begins."""
        lease: ServedLease = connection.state["lease"]
        return self._join(connection, lease.bearer) if lease.over.is_set() and connection.state["address"] else lease

    async def _tell(self, connection: ClientConnection, context: Context) -> None:
        lease: ServedLease = connection.state["lease"]
        if lease.over.is_set() or not lease.client.relays:
            return
        session = await self._leases.session_of(lease)
        for found in map(session.sending.local, session.sending.connections):
            await found.forwarding.notify(context.method, dict(context.params or {}))

    async def _in_session(self, connection: ClientConnection, method: str, given: Json, relay: Relay) -> Json:
        """The result of a request within a session. Raises `ErrorAnswer`, `GatewayError`."""
        params = dict(given)
        said: Any = params.pop("_meta", None) or {}
        if not isinstance(said, dict):
            raise ErrorAnswer({"code": INVALID_PARAMS, "message": "_meta must be an object"})
        meta = dict(cast("Json", said))
        if method == "logging/setLevel":
            connection.state["level"] = params.get("level")
        elif level := connection.state.get("level"):
            meta[LOG_LEVEL_META_KEY] = level  # for servers of 2026-07-28
        lease = self._of_session(connection)
        with self._counted(lease, method):
            session = await self._leases.session_of(lease)
            self._pass_rest(connection, lease, session)
            world = WorldRequest(lease.client, session, relay, method, meta)
            return self._noted(method, in_era(await world.result(params, rounds=MOST_ROUNDS), "", modern=False))

    async def _in_world(self, context: Context, relay: ClientRelay) -> Json:
        """The result of a request without a session. Raises `ErrorAnswer`, `GatewayError`."""
        params = dict(context.params or {})
        meta: Json = dict(params.pop("_meta", None) or {})
        named = str(meta.pop(WORLD_META, ""))
        lease = self._at_address(context, split_state(params) or named)

        async def begin(back: Relay) -> Json:
            session = await self._leases.session_of(lease)
            return await WorldRequest(lease.client, session, back, context.method, meta).result(params, rounds=0)

        with self._counted(lease, context.method):
            if lease.client.pushes:
                result = await self._parked.result(lease.handle, context.method, params, relay, begin)
            else:
                result = await begin(relay)
        if SUBSCRIPTION_ID_META_KEY in (said := cast("Json", result.get("_meta") or {})):
            result = {**result, "_meta": {**said, SUBSCRIPTION_ID_META_KEY: context.request_id}}
        return self._noted(context.method, in_era(joined_state(result, lease.world), lease.world, modern=True))

    def _at_address(self, context: Context, named: str) -> ServedLease:
        """The world at a request's address, which begins where there is none, unless the request names one."""
        address, bearer = _place(context)
        try:
            lease = self._leases.at(address, bearer)
            if named and (lease is None or lease.world != named):
                raise ErrorAnswer({"code": INVALID_PARAMS, "message": NO_LEASE})
            return lease or self._leases.begin_for_client(bearer, self._gateways.opened(Era.MODERN), address)
        except Refused as refused:
            raise ErrorAnswer({"code": INTERNAL_ERROR, "message": refused.problem}) from refused

    @contextmanager
    def _counted(self, lease: ServedLease, method: str) -> Generator[None]:
        """Count a request to its bearer and its lease while it is under way."""
        silent = method == "subscriptions/listen"
        lease.bearer.calls += 1
        lease.requests += not silent
        lease.sessions += silent
        try:
            yield
        except GatewayError as error:
            self._counts.calls[error.code] += method == "tools/call"
            self._leases.end_if_broken(lease)
            raise
        finally:
            lease.bearer.calls -= 1
            lease.requests -= not silent
            lease.sessions -= silent
            lease.used()
            self._leases.end_if_unused(lease)

    def _noted(self, method: str, result: Json) -> Json:
        if method == "tools/call":
            self._counts.calls["error_result" if result.get("isError") else "result"] += 1
        return result

    def _pass_rest(self, connection: ClientConnection, lease: ServedLease, session: Session) -> None:
        """Pass to a session's own stream what the servers of its own connections send outside of requests."""
        # At a session's first request, not when it begins: only then is its lease granted.
        if "rest" in connection.state or not lease.client.relays:
            return
        relay = ClientRelay(connection, connection.client_capabilities, answer_s=self._answer_s)
        connection.state["rest"] = relay
        self._leases.pass_on(relay)
        for found in map(session.sending.local, session.sending.connections):
            # Of a shared connection it is unknown whose such a message is.
            if found.config.scope is not Scope.SHARED:
                found.forwarding.relay_rest(relay)
                connection.exit_stack.callback(found.forwarding.end_rest, relay)
        connection.exit_stack.callback(relay.close)


def _place(context: Context) -> tuple[str, Bearer]:
    """The address of a request, and its bearer."""
    scope = cast("Any", context.request).scope
    return scope[_ADDRESS], scope[_BEARER]


def _era(version: str) -> Era:
    """The era of a request with this header; without one it is a handshake's."""
    return Era.HANDSHAKE if not version or version in HANDSHAKE_PROTOCOL_VERSIONS else Era.MODERN
