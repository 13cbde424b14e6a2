"""The ASGI application: who may ask, what is asked, and the answer as one JSON document."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple, cast

import structlog
from anyio.abc import TaskGroup
from pydantic_core import to_json

from gateway.errors import GatewayError
from gateway.remote.names import CAPABILITIES_META, EXTENSION, LEASE_META
from gateway.remote.outcome import failed
from gateway.serve.bearers import Admission, Bearer, Refused
from gateway.serve.client_face import ClientFace
from gateway.serve.client_gateways import ClientGateways, ServedGateway
from gateway.serve.config import ServeConfig
from gateway.serve.direct_http import ADMITTED, BEGUN, concerns
from gateway.serve.lease_face import LeaseFace
from gateway.serve.leases import PATH, ServedLeases
from gateway.serve.metrics import CONTENT_TYPE, Counts, exposition
from gateway.serve.params import InvalidParams, Params
from gateway.transport.channel import read_json

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

log = structlog.get_logger(__name__)

_ADDRESS = re.compile(rf"{PATH}(?:/([A-Za-z0-9._~-]{{1,128}}))?")
_JSON = b"application/json"
_DECISIVE = frozenset((b"authorization", b"host", b"origin", b"mcp-session-id", b"mcp-protocol-version"))
_INVALID_REQUEST, _INVALID_PARAMS, _INTERNAL = -32600, -32602, -32603


class Answer(NamedTuple):
    """An HTTP answer."""

    status: int
    body: bytes
    kind: bytes = _JSON

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        headers = [(b"content-type", self.kind), (b"content-length", b"%d" % len(self.body))]
        # RFC 9110, section 15.5.2: a 401 names the scheme that would be accepted.
        if self.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        return headers


class ServeApp:
    """One gateway behind HTTP."""

    def __init__(
        self,
        gateway: ServedGateway,
        clients: ClientGateways,
        tasks: TaskGroup,
        config: ServeConfig,
        leases: ServedLeases,
    ) -> None:
        self._config, self._leases = config, leases
        self._admission, self._counts = Admission(config, gateway.places), Counts()
        self._lease_face = LeaseFace(gateway, config, leases, self._counts)
        self.client_face = ClientFace(clients, leases, config, self._counts, tasks)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            answer = await self._answer(scope, receive, send)
        except Refused as refused:
            answer = self.refused(refused)
        if answer is None:
            return
        await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
        await send({"type": "http.response.body", "body": answer.body})

    def admit(self, headers: dict[bytes, bytes]) -> Bearer:
        """As `Admission.admit`."""
        return self._admission.admit(headers)

    async def respond(self, headers: dict[bytes, bytes], body: bytes, bearer: Bearer) -> Answer | None:
        """The answer to one POST of the lease extension, or to a client's call that needs no stream; else None.

        Args:
            headers: Names in lower case; `bearer` is whom `admit` found in them.
        """
        try:
            return await self._post(headers, body, bearer, "")
        except Refused as refused:
            return self.refused(refused)

    def refused(self, refused: Refused) -> Answer:
        """The answer to a request that is not executed."""
        self._counts.refused[refused.status] += 1
        return Answer(refused.status, _error(None, _INVALID_REQUEST, refused.problem))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> Answer | None:
        """The answer; None where it was sent."""
        # Before the token is checked: what probes a program's health has none.
        if scope["path"] == "/health":
            status = 503 if self._leases.draining else 200
            return Answer(status, to_json({"status": "draining" if self._leases.draining else "ok"}))
        headers = dict(scope["headers"])
        # Of two values, mcp's server reads the first one, and this one the last.
        decisive = [name for name, _ in scope["headers"] if name in _DECISIVE]
        if len(decisive) > len(set(decisive)):
            raise Refused(400, "a header that says who asks, or where, is repeated")
        bearer = self._admission.admit(headers)
        scope["state"][ADMITTED]()
        address = _address_of(scope["path"])
        if address is None:
            if scope["path"] != "/metrics":
                raise Refused(404, f"nothing is served here: the endpoint is {PATH}, a world's address {PATH}/NAME")
            if scope["method"] == "GET":
                return Answer(200, self._metrics(), CONTENT_TYPE)
        match scope["method"]:
            case "POST" if address is not None:
                body = await self._body(receive)
                # The lease extension is answered here, too: uvicorn reads what is unusual in its framing alone.
                concerned, answer = concerns(headers, body), None
                if concerned and not scope["state"].get(BEGUN):
                    answer = await self._post(headers, body, bearer, address)
                if answer is None:
                    with self.client_face.posted(headers, body, begun=concerned):
                        # mcp's server reads the body itself; the rest of `receive` tells it when its client has left.
                        await self.client_face.serve(bearer, address, scope, _again(body, receive), send)
                return answer
            case "DELETE" if address and b"mcp-session-id" not in headers:
                await self._leases.close_at(address, bearer)
                return Answer(200, b"{}")
            case "GET" | "DELETE" if address is not None:
                return await self.client_face.serve(bearer, address, scope, receive, send)
            case _:
                raise Refused(405, "this method is not served here")

    async def _body(self, receive: Receive) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refused(400, "the client has disconnected")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._config.max_request_bytes:
                raise Refused(413, f"the request has more than max_request_bytes ({self._config.max_request_bytes})")
            if not message.get("more_body"):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _post(self, headers: dict[bytes, bytes], body: bytes, bearer: Bearer, address: str) -> Answer | None:
        """As `respond`. At a world's address there are no leases to ask for."""
        try:
            message = read_json(body)
        except (ValueError, RecursionError) as error:
            return Answer(400, _error(None, -32700, f"the body is no JSON-RPC message: {error}"))
        number, method, given = message.get("id"), message.get("method"), message.get("params", {})
        # The id by its type: true and false are integers to `isinstance`.
        if not isinstance(method, str) or not isinstance(given, dict) or type(number) not in (int, str, type(None)):
            return Answer(400, _error(None, _INVALID_REQUEST, "the body is no JSON-RPC request"))
        params = cast("dict[str, Any]", given)
        # A notification has no answer but its status, 202, which is mcp's server's to give.
        if number is None:
            return None
        try:
            answer = None if address else await self._dispatch(method, params, bearer)
        except GatewayError as error:
            # With status 200: the gateway on the other side sends again what was answered with 429 or from 500 on.
            answer = failed(error)
        except InvalidParams as error:
            return Answer(200, _error(number, _INVALID_PARAMS, str(error)))
        # Answered by its HTTP status, by `respond` and `__call__`.
        except Refused:
            raise
        except Exception:  # boundary: a defect here ends this request, and no other
            log.exception("serve.request_failed", method=method[:100])
            return Answer(500, _error(number, _INTERNAL, "a defect of this server; its log has more"))
        if answer is None:
            response = await self.client_face.call(bearer, address, headers, message)
            return Answer(200, response) if response is not None else None
        return Answer(200, b'{"jsonrpc":"2.0","id":%s,%s}' % (to_json(number), answer))

    async def _dispatch(self, method: str, params: dict[str, Any], bearer: Bearer) -> bytes | None:
        """The lease face's answer to one request; None where it is the client face's."""
        given: Any = params.get("_meta") or {}
        if not isinstance(given, dict):
            raise InvalidParams("_meta must be an object")
        meta = cast("dict[str, Any]", given)
        if method == "tools/call" and LEASE_META in meta:
            return await self._lease_face.call(Params(params), bearer)
        # Other clients discover what mcp's server has to say: all that the servers offer.
        if method == "server/discover" and EXTENSION in _extensions(meta):
            return await self._lease_face.discover(Params(params), bearer)
        if (known := self._lease_face.methods.get(method)) is not None:
            return await known(Params(params), bearer)
        return None

    def _metrics(self) -> bytes:
        leases = self._leases
        bearers = self._admission.bearers
        return exposition(self._counts, bearers, leases=len(leases), granted=leases.granted, freed=leases.freed)


def _address_of(path: str) -> str | None:
    """The name of the world that a path is the address of, empty without one; None for any other path."""
    found = _ADDRESS.fullmatch(path)
    return found and (found[1] or "")


def _extensions(meta: dict[str, Any]) -> dict[str, Any]:
    """The extensions that a request's client declares."""
    declared: Any = meta.get(CAPABILITIES_META)
    found: Any = cast("dict[str, Any]", declared).get("extensions") if isinstance(declared, dict) else None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _again(body: bytes, receive: Receive) -> Receive:
    """A body that was read, and then what follows it."""
    left = [body]

    async def replayed() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": left.pop()} if left else await receive()

    return replayed


def _error(number: object, code: int, message: str) -> bytes:
    return to_json({"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}})
