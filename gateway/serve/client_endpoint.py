"""The endpoint for any MCP client: mcp's server in front, requests passed to the servers of the client's world."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, cast

from mcp import MCPError
from mcp.server.connection import Connection as ClientConnection
from mcp.server.context import CallNext, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, LOG_LEVEL_META_KEY
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from mcp_rollout.gateway.connection.relay import ErrorAnswer, Json
from mcp_rollout.gateway.errors import ConfigError, GatewayError
from mcp_rollout.gateway.remote.names import EXTENSION, VERSION
from mcp_rollout.gateway.sdk import connection_of
from mcp_rollout.gateway.serve.bearers import Bearer, Counts, Refused
from mcp_rollout.gateway.serve.client_gateways import ClientGateways, Era
from mcp_rollout.gateway.serve.client_relay import relay_of
from mcp_rollout.gateway.serve.client_sessions import ClientSessions, RecentEvents, user_of
from mcp_rollout.gateway.serve.client_world import CACHE, WorldRequest, error_of, handshake_result, modern_result
from mcp_rollout.gateway.serve.config import ServeConfig
from mcp_rollout.gateway.serve.leases import ServedLeases
from mcp_rollout.gateway.serve.served_lease import ServedLease

Context = ServerRequestContext[Any, Any]

_SENDER = "mcp_rollout.sender"
_EXTENSIONS: Json = {EXTENSION: {"version": VERSION}}


@dataclass(eq=False, slots=True)
class _Sender:
    """Who sends an HTTP request, and where."""

    bearer: Bearer
    address: str
    holds_place: bool
    """Whether it counts as a session of its bearer, until it has begun one."""

    @property
    def extensions(self) -> Json:
        """What is advertised: leases are not opened at a world's address."""
        return {} if self.address or self.bearer.is_client else _EXTENSIONS


@dataclass(eq=False, slots=True)
class _Session:
    """A session of the handshake's era."""

    sender: _Sender
    lease: ServedLease | None = None
    """Its world; None if it was refused one."""
    log_level: Any = None
    """That its client has set, for servers of 2026-07-28."""


class ClientEndpoint:
    """Answers MCP clients of both protocol eras over HTTP."""

    def __init__(self, gateways: ClientGateways, leases: ServedLeases, config: ServeConfig, counts: Counts) -> None:
        self._gateways, self._leases, self._counts, self._answer_s = gateways, leases, counts, config.answer_s
        self._sessions: dict[str, _Session] = {}
        self._server: Server[Any] = Server(
            "mcp-rollout", version=version("mcp-rollout"), get_tool_input_schema=self._input_schema
        )
        self._server.middleware.append(self._answer)
        self.sessions = ClientSessions(self._server, config)

    async def serve(self, bearer: Bearer, address: str, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request of a bearer at an address. Raises `Refused`."""
        headers = dict(scope["headers"])
        session = self._sessions.get(headers.get(b"mcp-session-id", b"").decode("latin-1"))
        if session is not None and session.sender.address != address:
            raise Refused(404, "the session was begun at another address")
        spoken = headers.get(b"mcp-protocol-version", b"").decode("latin-1")
        # A request without this header is a handshake's.
        era = Era.HANDSHAKE if not spoken or spoken in HANDSHAKE_PROTOCOL_VERSIONS else Era.MODERN
        begins = b"mcp-session-id" not in headers and era is Era.HANDSHAKE
        if begins and bearer.sessions >= bearer.share.sessions:
            raise Refused(429, f"{bearer.sessions} sessions are open already (client_sessions)")
        sender = _Sender(bearer, address, holds_place=begins)
        # Before anything is waited for: of requests that come at once, each finds the places of the others taken.
        bearer.sessions += begins
        try:
            # Here, since mcp's server asks for schemas by `_input_schema`, which cannot wait for servers to start.
            await self._gateways.open(era)
            await self.sessions.handle_request({**scope, _SENDER: sender, "user": user_of(bearer)}, receive, send)
        except (GatewayError, ConfigError) as error:
            raise Refused(503, f"the servers for MCP clients did not start: {error}") from error
        finally:
            bearer.sessions -= sender.holds_place

    def _input_schema(self, name: str) -> Mapping[str, Any] | None:
        tool = self._gateways.opened(Era.MODERN).tools.get(name)
        return tool["inputSchema"] if tool is not None else None

    async def _answer(self, ctx: Context, call_next: CallNext) -> Any:
        """mcp's middleware: every request and notification of clients."""
        modern = connection_of(ctx).protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS
        # mcp's server answers these, or refuses them; and it cancels its own handlers.
        if ctx.request_id is None or ctx.method == "ping" or (modern and ctx.method == "initialize"):
            return await call_next(ctx)
        try:
            _sender(ctx).bearer.check_calls()
            return await (self._in_2026 if modern else self._in_session)(ctx, call_next)
        except (ErrorAnswer, GatewayError) as broken:
            error = error_of(broken)
            raise MCPError(code=error["code"], message=error["message"], data=error.get("data")) from broken
        except Refused as refused:
            raise MCPError(code=INTERNAL_ERROR, message=refused.problem) from refused

    async def _in_session(self, ctx: Context, call_next: CallNext) -> Json:
        """The result of a request of the handshake's era. Raises `ErrorAnswer`, `GatewayError` and `Refused`."""
        connection = connection_of(ctx)
        session = self._sessions.get(connection.session_id or "")
        if ctx.method == "initialize":
            session = session or self._begin(connection, ctx)
            # Before mcp's server accepts it: a session without a world would be one that is refused everything.
            client = self._join(session, connection).client
            answer = cast("Json", await call_next(ctx))
            return {**answer, **client.described(pushes=False, experimental=session.sender.extensions)}
        if session is None or session.lease is None:
            raise ErrorAnswer({"code": INVALID_REQUEST, "message": "initialize the session first"})
        lease = self._join(session, connection)
        if ctx.method == "tools/list":
            return {"tools": await self._tools(lease)}
        level: Json = {LOG_LEVEL_META_KEY: session.log_level} if session.log_level else {}
        if ctx.method == "logging/setLevel":
            session.log_level = (ctx.params or {}).get("level")
        return handshake_result(await self._result(ctx, lease, level))

    async def _in_2026(self, ctx: Context, call_next: CallNext) -> Json:
        """The result of a request of 2026-07-28, at the world of its address. Raises as `_in_session`."""
        sender = _sender(ctx)
        lease = self._leases.at(sender.address, sender.bearer)
        client = lease.client if lease is not None else self._gateways.opened(Era.MODERN)
        if ctx.method == "server/discover":
            answer = cast("Json", await call_next(ctx))
            return {**answer, **client.described(pushes=True, extensions=sender.extensions)}
        if ctx.method == "tools/list":
            tools = list(client.tools.values()) if lease is None else await self._tools(lease)
            return modern_result({"tools": tools, **CACHE}, ctx.request_id)
        lease = lease or self._leases.begin_for_client(sender.bearer, client, sender.address)
        return modern_result(await self._result(ctx, lease, {}), ctx.request_id)

    async def _tools(self, lease: ServedLease) -> list[Json]:
        """As listed at the start, and without cursors: the tools of a world do not change while it lasts."""
        tools = lease.client.tools
        # A trainer's lease can be of some of the servers.
        names = tools if lease.is_clients else (await self._leases.session_of(lease)).tools
        return [tools[name] for name in names]

    def _begin(self, connection: ClientConnection, ctx: Context) -> _Session:
        """Keep the state of a session. Also of one that is refused a world: mcp keeps it until it is idle."""
        sender = _sender(ctx)
        name, session = str(connection.session_id), _Session(sender)
        self._sessions[name] = session
        # The place is the session's from here on.
        sender.holds_place = False
        connection.exit_stack.callback(self._forget, name, sender.bearer)
        connection.exit_stack.callback(cast("RecentEvents", self.sessions.events_of(name)).close)
        return session

    def _forget(self, name: str, bearer: Bearer) -> None:
        del self._sessions[name]
        bearer.sessions -= 1

    def _join(self, session: _Session, connection: ClientConnection) -> ServedLease:
        """The world of a session: at its address, where another one begins if that is over; else one of its own."""
        lease, address, bearer = session.lease, session.sender.address, session.sender.bearer
        if lease is not None and not (address and lease.over.is_set()):
            return lease
        lease = self._leases.at(address, bearer) if address else None
        if lease is None:
            lease = self._leases.begin_for_client(bearer, self._gateways.opened(Era.HANDSHAKE), address or None)
        session.lease = lease
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

    async def _result(self, ctx: Context, lease: ServedLease, level: Json) -> Json:
        """The servers' result of a request, which is sent to them once. Raises as `_in_session`."""
        params = dict(ctx.params or {})
        meta: Any = params.pop("_meta", None) or {}
        if not isinstance(meta, dict):
            raise ErrorAnswer({"code": INVALID_PARAMS, "message": "_meta must be an object"})
        meta = cast("Json", {**meta, **level})
        with self._counted(lease, ctx.method):
            session = await self._leases.session_of(lease)
            relay = relay_of(ctx, meta.get("progressToken"), self._answer_s)
            request = WorldRequest(lease.client, session, relay, ctx.method, meta)
            result = await relay.passing(request.result(params))
        if ctx.method == "tools/call":
            self._counts.calls["error_result" if result.get("isError") else "result"] += 1
        return result

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


def _sender(context: Context) -> _Sender:
    return cast("Any", context.request).scope[_SENDER]
