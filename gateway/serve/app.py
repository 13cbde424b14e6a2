"""What is served over HTTP: who may ask, what is asked, and the answer as one JSON document.

POSTs to the endpoint are answered without ASGI where they ask for a lease.
"""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import anyio
import structlog
from anyio.abc import TaskStatus
from pydantic_core import to_json

from mcp_rollout.gateway.errors import ConfigError, GatewayError
from mcp_rollout.gateway.remote.names import LEASE_META
from mcp_rollout.gateway.remote.outcome import failed
from mcp_rollout.gateway.serve.bearers import CONTENT_TYPE, Admission, Bearer, Counts, Refused, exposition
from mcp_rollout.gateway.serve.client_endpoint import ClientEndpoint
from mcp_rollout.gateway.serve.client_gateways import ClientGateways, ServedGateway
from mcp_rollout.gateway.serve.config import ServeConfig
from mcp_rollout.gateway.serve.lease_endpoint import LeaseEndpoint
from mcp_rollout.gateway.serve.leases import PATH, ServedLeases
from mcp_rollout.gateway.serve.params import InvalidParams, Params
from mcp_rollout.gateway.transport.messages import read_request
from mcp_rollout.mcp_wire.admission import is_loopback
from mcp_rollout.mcp_wire.http_connections import Connections
from mcp_rollout.mcp_wire.http_request import BEARER, DirectAnswer, NotAdmitted, Request
from mcp_rollout.mcp_wire.http_server import http_server

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

log = structlog.get_logger(__name__)

_ENDPOINT, _HEALTH = PATH.encode(), b"/health"
_ADDRESS = re.compile(rf"{PATH}(?:/([A-Za-z0-9._~-]{{1,128}}))?")
_LEASES = b"mcp-rollout/lease"
"""In the body of every request of the lease extension: in its method, or in its `_meta`."""
_DIRECT_BYTES = 1 << 16
"""Longest request that is read before anything is asked: what any connection may hold. Longer ones are counted."""
_INVALID_REQUEST, _INVALID_PARAMS, _INTERNAL = -32600, -32602, -32603


class ServeApp:
    """One gateway behind HTTP: the ASGI application, and the `Site` of its connections."""

    def __init__(
        self,
        gateway: ServedGateway,
        clients: ClientGateways,
        config: ServeConfig,
        leases: ServedLeases,
    ) -> None:
        self._config, self._leases = config, leases
        self._admission, self._counts = Admission(config, gateway.places), Counts()
        self._lease_endpoint = LeaseEndpoint(gateway, config, leases, self._counts)
        self.client_endpoint = ClientEndpoint(clients, leases, config, self._counts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            answer = await self._answer(scope, receive, send)
        except Refused as refused:
            answer = self._refused(refused)
        if answer is None:
            return
        headers = [(b"content-type", answer.kind), (b"content-length", b"%d" % len(answer.body))]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    def admit(self, request: Request) -> Bearer:
        """As `Site.admit`."""
        # What probes a program's health has no token.
        if request.target.partition(b"?")[0] == _HEALTH:
            status = 503 if self._leases.draining else 200
            raise NotAdmitted(DirectAnswer(status, to_json({"status": "draining" if self._leases.draining else "ok"})))
        try:
            return self._admission.admit(request.headers)
        except Refused as refused:
            raise NotAdmitted(self._refused(refused)) from refused

    def may_answer(self, request: Request) -> bool:
        """As `Site.may_answer`."""
        return request.target == _ENDPOINT

    async def answer(self, request: Request) -> bool:
        """As `Site.answer`. A client that disconnects meanwhile does not cancel what it asked for."""
        if _LEASES not in request.body:
            return False
        try:
            answer = await self._post(request.body, request.bearer)
        except Refused as refused:
            answer = self._refused(refused)
        if answer is None:
            return False
        request.respond(answer)
        return True

    def _refused(self, refused: Refused) -> DirectAnswer:
        self._counts.refused[refused.status] += 1
        return DirectAnswer(refused.status, _error(None, _INVALID_REQUEST, refused.problem))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> DirectAnswer | None:
        """The answer; None if it was sent."""
        bearer: Bearer = scope["state"][BEARER]
        # Of a world, empty without its name; None for any other path.
        address = (found[1] or "") if (found := _ADDRESS.fullmatch(scope["path"])) else None
        if address is None:
            if scope["path"] != "/metrics":
                raise Refused(404, f"nothing is served here: the endpoint is {PATH}, a world's address {PATH}/NAME")
            if scope["method"] == "GET" and not bearer.is_client:
                return DirectAnswer(200, self._metrics(), CONTENT_TYPE)
        match scope["method"]:
            case "POST" if address is not None:
                with bearer.holding() as hold:
                    body = await self._body(receive, hold)
                    # At a world's address there are no leases to ask for.
                    if not address and _LEASES in body and (answer := await self._post(body, bearer)) is not None:
                        return answer
                    # mcp's server reads the body itself; the rest of `receive` tells it when its client leaves.
                    return await self.client_endpoint.serve(bearer, address, scope, _again(body, receive), send)
            case "DELETE" if address and b"mcp-session-id" not in dict(scope["headers"]):
                await self._leases.close_at(address, bearer)
                return DirectAnswer(200, b"{}")
            case "GET" | "DELETE" if address is not None:
                return await self.client_endpoint.serve(bearer, address, scope, receive, send)
            case _:
                raise Refused(405, "this method is not served here")

    async def _body(self, receive: Receive, hold: Callable[[int], None]) -> bytes:
        parts: list[bytes] = []
        size = held = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refused(400, "the client has disconnected")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._config.max_request_bytes:
                raise Refused(413, f"the request has more than max_request_bytes ({self._config.max_request_bytes})")
            # Else a connection's own bound is enough, and short requests pass whatever the longer ones hold.
            if size > _DIRECT_BYTES:
                hold(size - held)
                held = size
            if not message.get("more_body"):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _post(self, body: bytes, bearer: Bearer) -> DirectAnswer | None:
        """The answer to one POST of the lease extension; None if it is the client endpoint's."""
        try:
            message, replaced = read_request(body)
        except (ValueError, RecursionError) as error:
            return DirectAnswer(400, _error(None, -32700, f"the body is not a JSON-RPC message: {error}"))
        number, method, given = message.get("id"), message.get("method"), message.get("params", {})
        # The id by its type: true and false are integers to `isinstance`.
        if not isinstance(method, str) or not isinstance(given, dict) or type(number) not in (int, str, type(None)):
            return DirectAnswer(400, _error(None, _INVALID_REQUEST, "the body is not a JSON-RPC request"))
        params = cast("dict[str, Any]", given)
        # A notification has no answer but its status, 202, which is mcp's server's to give.
        if number is None:
            return None
        if replaced:
            return DirectAnswer(200, _error(number, _INVALID_PARAMS, replaced))
        try:
            answer = await self._dispatch(method, params, bearer)
        except GatewayError as error:
            # With status 200: the gateway on the other side sends again what was answered with 429 or from 500 on.
            answer = failed(error)
        except InvalidParams as error:
            return DirectAnswer(200, _error(number, _INVALID_PARAMS, str(error)))
        # Answered by its HTTP status, by the caller.
        except Refused:
            raise
        except Exception:  # boundary: a defect here ends this request, and no other
            log.exception("serve.request_failed", method=method[:100])
            return DirectAnswer(500, _error(number, _INTERNAL, "a defect of this server; its log has more"))
        if answer is None:
            return None
        return DirectAnswer(200, b'{"jsonrpc":"2.0","id":%s,%s}' % (to_json(number), answer))

    async def _dispatch(self, method: str, params: dict[str, Any], bearer: Bearer) -> bytes | None:
        """The lease endpoint's answer to one request; None if it is the client endpoint's."""
        given: Any = params.get("_meta") or {}
        if not isinstance(given, dict):
            raise InvalidParams("_meta must be an object")
        meta = cast("dict[str, Any]", given)
        if bearer.is_client:
            # Its requests are the client endpoint's, which knows neither leases nor harness tools.
            if method in self._lease_endpoint.methods or LEASE_META in meta:
                raise Refused(403, "this token is an MCP client's: leases need one of --token-file")
            return None
        if method == "tools/call" and LEASE_META in meta:
            return await self._lease_endpoint.call(Params(params), bearer)
        if (known := self._lease_endpoint.methods.get(method)) is not None:
            return await known(Params(params), bearer)
        return None

    def _metrics(self) -> bytes:
        leases = self._leases
        bearers = self._admission.bearers
        return exposition(self._counts, bearers, leases=len(leases), granted=leases.granted, freed=leases.freed)


def _again(body: bytes, receive: Receive) -> Receive:
    """A body that was read, and then what follows it."""
    left = [body]

    async def replayed() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": left.pop()} if left else await receive()

    return replayed


def _error(number: object, code: int, message: str) -> bytes:
    return to_json({"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}})


_BACKLOG = 4096
_STOP_S = 5.0
"""For uvicorn to close its connections."""


@dataclass(eq=False)
class Serving:
    """A gateway that is served."""

    url: str
    _leases: ServedLeases

    @property
    def leases(self) -> int:
        """Leases at the moment, waiting ones included."""
        return len(self._leases)

    async def drain(self) -> None:
        """Lease nothing more, and return when no lease is left, after `drain_s` at the latest."""
        await self._leases.drained()


@asynccontextmanager
async def serving(gateway: ServedGateway, config: ServeConfig) -> AsyncGenerator[Serving]:
    """Serve an entered gateway for the length of the block; leaving it ends every lease.

    Raises:
        ConfigError: the address cannot be listened at.
    """
    # Here: where the address is taken, uvicorn would end the program.
    listener = _listen(config)
    if not is_loopback(config.host):
        remedy = "put a proxy that speaks TLS in front, unless only trusted machines reach this address"
        log.warning("serve.no_tls", host=config.host, problem="tokens and texts travel in the clear", remedy=remedy)
    port = listener.getsockname()[1]
    host = f"[{config.host}]" if ":" in config.host else config.host
    async with anyio.create_task_group() as tasks:
        leases = ServedLeases(gateway, config, tasks)
        app = ServeApp(gateway, ClientGateways(gateway, tasks), config, leases)
        connections = Connections(receive_s=config.receive_s, unadmitted=config.unadmitted)
        direct_bytes = min(config.max_request_bytes, _DIRECT_BYTES)
        server = http_server(app, app, connections, direct_bytes=direct_bytes, stop_s=_STOP_S)
        stopped = anyio.Event()

        async def listen() -> None:
            try:
                await server.serve(sockets=[listener])
            finally:
                stopped.set()

        tasks.start_soon(listen)
        tasks.start_soon(leases.sweep)
        tasks.start_soon(connections.sweep)
        await tasks.start(_hold_sessions, app)
        try:
            yield Serving(f"http://{host}:{port}{PATH}", leases)
        finally:
            with anyio.CancelScope(shield=True):  # worlds are released whatever ends the block; each wait is bounded
                # Before uvicorn ends: it still carries the answers of the calls that are cancelled now.
                await leases.end_all()
                await app.client_endpoint.sessions.end_all()
                server.should_exit = True
                # uvicorn waits for requests for half of it, and then cancels them.
                with anyio.move_on_after(2 * _STOP_S):
                    await stopped.wait()
            tasks.cancel_scope.cancel()


async def _hold_sessions(app: ServeApp, *, task_status: TaskStatus[None]) -> None:
    """Keep mcp's sessions of MCP clients until cancelled."""
    async with app.client_endpoint.sessions.run():
        task_status.started()
        await anyio.sleep_forever()


def _listen(config: ServeConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # With its protocol, without which asyncio lets small packets wait for those before them.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # Or a restart would find the port taken by connections of the old program, for a minute.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((config.host, config.port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        problem = f"cannot listen at {config.host} port {config.port}: {error.strerror or error}"
        raise ConfigError(problem, key="--port", remedy="name another one; 0 takes a free one") from error
    listener.setblocking(False)
    return listener
