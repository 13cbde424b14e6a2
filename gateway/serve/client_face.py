"""The face to any MCP client: mcp's server in front, and each request passed to the servers of the client's world."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast

from anyio.abc import TaskGroup
from mcp import MCPError
from mcp.server.context import CallNext, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, LOG_LEVEL_META_KEY
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic_core import to_json

from gateway.connection.relay import ErrorAnswer, Json, Relay
from gateway.errors import ConfigError, GatewayError, WorldLost
from gateway.remote.names import EXTENSION, VERSION
from gateway.serve.bearers import Bearer, Refused
from gateway.serve.client_calls import RunningCalls
from gateway.serve.client_gateways import ClientGateway, ClientGateways, Era
from gateway.serve.client_parked import ParkedRequests
from gateway.serve.client_relay import SUBSCRIPTION_META, ClientRelay, connection_of, relay_of
from gateway.serve.client_results import WORLD_META, enveloped, in_era, joined_state, split_state
from gateway.serve.client_sessions import ClientSessions, user_of
from gateway.serve.client_world import MOST_ROUNDS, WorldRequest, error_of
from gateway.serve.config import ServeConfig
from gateway.serve.leases import ServedLease, ServedLeases
from gateway.serve.metrics import Counts
from gateway.transport.channel import read_json
from gateway.types import Scope

if TYPE_CHECKING:
    from mcp.server.connection import Connection as ClientConnection
    from starlette.types import Receive, Send
    from starlette.types import Scope as AsgiScope

    from gateway.leases.session import Session

Context = ServerRequestContext[Any, Any]

_BEARER = "mcp_rollout.bearer"
_OWN = frozenset(("initialize", "ping"))
"""Methods that mcp's server answers."""
_TOLD = frozenset(("notifications/roots/list_changed",))
"""A client's notifications that are passed."""
_EXTENSIONS: Json = {EXTENSION: {"version": VERSION}}
_CACHE: Json = {"ttlMs": 0, "cacheScope": "private"}


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
        self._gateways, self._leases, self._counts = gateways, leases, counts
        self._calls, self._parked = RunningCalls(tasks, config), ParkedRequests(tasks, config.idle_s)
        self._open: dict[str, ClientConnection] = {}
        """Sessions of the handshake's era."""
        self._server: Server[Any] = Server(
            "mcp-rollout", version=version("mcp-rollout"), get_tool_input_schema=self._input_schema
        )
        self._server.middleware.append(self._answer)
        self.sessions = ClientSessions(self._server, config)

    async def serve(self, bearer: Bearer, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request of a bearer. Raises `Refused`."""
        if bearer.calls >= bearer.limits.calls:
            raise Refused(429, f"{bearer.calls} calls are under way already (limits.calls)")
        spoken = dict(scope["headers"]).get(b"mcp-protocol-version", b"").decode("latin-1")
        try:
            # Here, since mcp's server asks for schemas by `_input_schema`, which cannot wait for servers to start.
            await self._gateways.open(_era(spoken))
        except (GatewayError, ConfigError) as error:
            raise Refused(503, f"the servers for MCP clients did not start: {error}") from error
        await self.sessions.handle_request({**scope, _BEARER: bearer, "user": user_of(bearer)}, receive, send)

    def posted(self, headers: Mapping[bytes, bytes], body: bytes, *, begun: bool) -> AbstractContextManager[None]:
        """As `RunningCalls.posted`, for what is a request of a session."""
        try:
            message = read_json(body) if b"mcp-session-id" in headers else {}
        except (ValueError, RecursionError):  # mcp's server says so
            message = {}
        if "method" not in message or message.get("id") is None:
            return nullcontext()
        return self._calls.posted(headers[b"mcp-session-id"].decode("latin-1"), message["id"], begun=begun)

    async def call(self, bearer: Bearer, headers: Mapping[bytes, bytes], message: Json) -> bytes | None:
        """The JSON-RPC response to a `tools/call` that needs no stream; None where mcp's server is to answer."""
        session = headers.get(b"mcp-session-id", b"").decode("latin-1")
        spoken = headers.get(b"mcp-protocol-version", b"").decode("latin-1")
        connection, number, params = self._open.get(session), message.get("id"), message.get("params")
        # mcp's server refuses what is no request of an open session, in the words of the protocol.
        if connection is None or _era(spoken) is Era.MODERN or not isinstance(params, dict):
            return None
        lease: ServedLease = connection.state["lease"]
        plain = message.get("method") == "tools/call" and isinstance(number, int | str) and not isinstance(number, bool)
        if not plain or lease.bearer is not bearer or not connection.initialize_accepted:
            return None
        if bearer.calls >= bearer.limits.calls:
            raise Refused(429, f"{bearer.calls} calls are under way already (limits.calls)")
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
        client = self._gateways.opened(Era.MODERN if modern else Era.HANDSHAKE)
        if ctx.request_id is None:
            # Not others: `initialized` was the gateway's to send, and progress names a token that no server has made.
            if ctx.method in _TOLD and not modern:
                await self._tell(connection, ctx)
            if ctx.method == "notifications/cancelled":
                # A call that mcp's server has not seen; it cancels its own by itself, in `call_next`.
                self._calls.cancel(connection.session_id or "", (ctx.params or {}).get("requestId"))
            return await call_next(ctx)
        try:
            if ctx.method in _OWN:
                answer = await call_next(ctx)
                if ctx.method == "initialize":
                    self._begin_session(connection, ctx, client)
                    return {**cast("Json", answer), **_described(client, experimental=_EXTENSIONS)}
                return answer
            if ctx.method == "server/discover":
                return {**cast("Json", await call_next(ctx)), **_described(client, extensions=_EXTENSIONS)}
            # As listed at the start, and without cursors: the tools of a world do not change while it lasts.
            if ctx.method == "tools/list":
                listed: Json = {"tools": list(client.tools.values())}
                return enveloped({**listed, **_CACHE}) if modern else listed
            relay = relay_of(ctx)
            if modern:
                return await relay.passing(self._in_world(ctx, client, relay))
            running = self._calls.take(connection.session_id or "", ctx.request_id)
            if running is not None:
                return await relay.passing(running.through(relay))
            return await relay.passing(self._in_session(connection, ctx.method, dict(ctx.params or {}), relay))
        except (ErrorAnswer, GatewayError) as broken:
            error = error_of(broken)
            raise MCPError(code=error["code"], message=error["message"], data=error.get("data")) from broken
        except Refused as refused:
            raise MCPError(code=INTERNAL_ERROR, message=refused.problem) from refused

    def _begin_session(self, connection: ClientConnection, context: Context, client: ClientGateway) -> None:
        """Lease the world of a session that begins; it is freed when mcp ends the session."""
        lease = self._leases.begin_for_client(_bearer(context), client.gateway)
        lease.requests += 1  # mcp's bound on idle sessions holds in place of that on leases
        connection.state["lease"] = lease
        # Returns at once: mcp unwinds the stack while it ends the session, and the release may take seconds.
        connection.exit_stack.callback(lease.end)
        if (session := connection.session_id) is not None:
            self._open[session] = connection
            connection.exit_stack.callback(self._open.pop, session, None)

    async def _tell(self, connection: ClientConnection, context: Context) -> None:
        if not self._gateways.opened(Era.HANDSHAKE).relays:
            return
        session = await self._leases.session_of(connection.state["lease"])
        for found in map(session.sending.local, session.sending.connections):
            await found.forwarding.notify(context.method, dict(context.params or {}))

    async def _in_session(self, connection: ClientConnection, method: str, given: Json, relay: Relay) -> Json:
        """The result of a request within a session. Raises `ErrorAnswer`, `GatewayError`."""
        params = dict(given)
        meta: Json = dict(params.pop("_meta", None) or {})
        lease: ServedLease = connection.state["lease"]
        session = await self._leases.session_of(lease)
        self._pass_rest(connection, session)
        if method == "logging/setLevel":
            connection.state["level"] = params.get("level")
        elif level := connection.state.get("level"):
            meta[LOG_LEVEL_META_KEY] = level  # for servers of 2026-07-28
        world = WorldRequest(self._gateways.opened(Era.HANDSHAKE), session, relay, method, meta)
        with self._counted(lease, method):
            return self._noted(method, in_era(await world.result(params, rounds=MOST_ROUNDS), "", modern=False))

    async def _in_world(self, context: Context, client: ClientGateway, relay: ClientRelay) -> Json:
        """The result of a request without a session. Raises `ErrorAnswer`, `GatewayError`."""
        params = dict(context.params or {})
        meta: Json = dict(params.pop("_meta", None) or {})
        lease, begun = self._world(_bearer(context), client, params, meta)
        named = False
        try:
            session = await self._leases.session_of(lease)

            async def begin(back: Relay) -> Json:
                return await WorldRequest(client, session, back, context.method, meta).result(params, rounds=0)

            with self._counted(lease, context.method):
                if client.pushes:
                    result = await self._parked.result(lease.handle, context.method, params, relay, begin)
                else:
                    result = await begin(relay)
            if SUBSCRIPTION_META in (said := cast("Json", result.get("_meta") or {})):
                result = {**result, "_meta": {**said, SUBSCRIPTION_META: context.request_id}}
            named = context.method == "tools/call" or result.get("resultType") == "input_required"
            return self._noted(context.method, in_era(joined_state(result, lease.handle), lease.handle, modern=True))
        finally:
            if begun and not named:  # its client cannot name it later
                lease.end()

    def _world(self, bearer: Bearer, client: ClientGateway, params: Json, meta: Json) -> tuple[ServedLease, bool]:
        """The world that a request names, or one that begins with it; and whether it does."""
        handle = str(meta.pop(WORLD_META, ""))
        handle = split_state(params) or handle
        try:
            if not handle:
                return self._leases.begin_for_client(bearer, client.gateway), True
            return self._leases.find(handle, bearer, is_clients=True), False
        except Refused as refused:
            raise ErrorAnswer({"code": INTERNAL_ERROR, "message": refused.problem}) from refused
        except WorldLost as error:
            raise ErrorAnswer({"code": INVALID_PARAMS, "message": str(error)}) from error

    @contextmanager
    def _counted(self, lease: ServedLease, method: str) -> Generator[None]:
        """Count a request to its bearer and its lease while it is under way."""
        lease.bearer.calls += 1
        lease.requests += 1
        try:
            yield
        except GatewayError as error:
            self._counts.calls[error.code] += method == "tools/call"
            raise
        finally:
            lease.bearer.calls -= 1
            lease.requests -= 1
            lease.used()

    def _noted(self, method: str, result: Json) -> Json:
        if method == "tools/call":
            self._counts.calls["error_result" if result.get("isError") else "result"] += 1
        return result

    def _pass_rest(self, connection: ClientConnection, session: Session) -> None:
        """Pass to a session's own stream what the servers of its own connections send outside of requests."""
        # At a session's first request, not when it begins: only then is its lease granted.
        if "rest" in connection.state or not self._gateways.opened(Era.HANDSHAKE).relays:
            return
        connection.state["rest"] = relay = ClientRelay(connection, connection.client_capabilities)
        self._leases.pass_on(relay)
        for found in map(session.sending.local, session.sending.connections):
            # Of a shared connection it is unknown whose such a message is.
            if found.config.scope is not Scope.SHARED:
                found.forwarding.relay_rest(relay)
                connection.exit_stack.callback(found.forwarding.relay_rest, None)
        connection.exit_stack.callback(relay.close)


def _bearer(context: Context) -> Bearer:
    return cast("Any", context.request).scope[_BEARER]


def _era(version: str) -> Era:
    """The era of a request with this header; without one it is a handshake's."""
    return Era.HANDSHAKE if not version or version in HANDSHAKE_PROTOCOL_VERSIONS else Era.MODERN


def _described(client: ClientGateway, **more: Json) -> Json:
    """Capabilities and instructions of all servers together."""
    capabilities: Json = {"tools": {}}
    for declared in client.capabilities.values():
        for name, options in declared.items():
            capabilities[name] = {**capabilities.get(name, {}), **cast("Json", options or {})}
    for name, options in more.items():
        capabilities[name] = {**capabilities.get(name, {}), **options}
    told = {server: text for server, text in client.gateway.instructions.items() if text}
    parts = [text if len(told) == 1 else f"# {server}\n{text}" for server, text in told.items()]
    return {"capabilities": capabilities, **({"instructions": "\n\n".join(parts)} if parts else {})}
