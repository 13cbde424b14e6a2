"""The ASGI application: who may ask, what is asked, and the answer as one JSON document."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import structlog
from pydantic_core import to_json

from gateway.errors import GatewayError
from gateway.remote.names import LEASE_META
from gateway.serve.answers import failed
from gateway.serve.bearers import Admission, Bearer, Refused
from gateway.serve.client_face import ClientFace
from gateway.serve.config import ServeConfig
from gateway.serve.lease_face import LeaseFace
from gateway.serve.leases import ServedLeases
from gateway.serve.metrics import CONTENT_TYPE, Counts, exposition
from gateway.serve.params import InvalidParams, Params
from gateway.transport.channel import read_json

if TYPE_CHECKING:
    from gateway.gateway import Gateway

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

log = structlog.get_logger(__name__)

PATH = "/mcp"
_JSON = b"application/json"
_INVALID_REQUEST, _NO_METHOD, _INVALID_PARAMS, _INTERNAL = -32600, -32601, -32602, -32603


class Answer(NamedTuple):
    """An HTTP answer."""

    status: int
    body: bytes
    kind: bytes = _JSON
    session: str = ""
    """The session that it begins."""

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        headers = [(b"content-type", self.kind), (b"content-length", b"%d" % len(self.body))]
        if self.session:
            headers.append((b"mcp-session-id", self.session.encode()))
        if self.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        return headers


class ServeApp:
    """One gateway behind HTTP."""

    def __init__(self, gateway: Gateway, config: ServeConfig, leases: ServedLeases) -> None:
        self._config, self._leases = config, leases
        self._admission, self._counts = Admission(config), Counts()
        self._lease_face = LeaseFace(gateway, config, leases, self._counts)
        self._client_face = ClientFace(gateway, leases)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            answer = await self._answer(scope, receive)
        except Refused as refused:
            answer = self._refused(refused)
        await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
        await send({"type": "http.response.body", "body": answer.body})

    async def respond(self, headers: dict[bytes, bytes], body: bytes) -> Answer:
        """The answer to one POST to the endpoint; header names in lower case."""
        try:
            bearer = self._admission.admit(headers)
            return await self._post(body, bearer, headers.get(b"mcp-session-id", b"").decode("latin-1"))
        except Refused as refused:
            return self._refused(refused)

    def _refused(self, refused: Refused) -> Answer:
        self._counts.refused[refused.status] += 1
        return Answer(refused.status, _error(None, _INVALID_REQUEST, refused.problem))

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        if scope["path"] == "/health":
            status = 503 if self._leases.draining else 200
            return Answer(status, to_json({"status": "draining" if self._leases.draining else "ok"}))
        headers = dict(scope["headers"])
        bearer = self._admission.admit(headers)
        session = headers.get(b"mcp-session-id", b"").decode("latin-1")
        match scope["method"], scope["path"]:
            case "POST", "/mcp":
                return await self._post(await self._body(receive), bearer, session)
            case "DELETE", "/mcp" if session:
                await self._client_face.close(session, bearer)
                return Answer(200, b"")
            case "GET", "/metrics":
                return Answer(200, self._metrics(), CONTENT_TYPE)
            case _, "/mcp" | "/metrics":
                raise Refused(405, "this method is not served here")
            case _:
                raise Refused(404, f"nothing is served here: the endpoint is {PATH}")

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

    async def _post(self, body: bytes, bearer: Bearer, session: str) -> Answer:
        try:
            message = read_json(body)
        except (ValueError, RecursionError) as error:
            return Answer(400, _error(None, -32700, f"the body is no JSON-RPC message: {error}"))
        number, method, given = message.get("id"), message.get("method"), message.get("params", {})
        if not isinstance(method, str) or not isinstance(given, dict) or type(number) not in (int, str, type(None)):
            return Answer(400, _error(None, _INVALID_REQUEST, "the body is no JSON-RPC request"))
        params = cast("dict[str, Any]", given)
        if "id" not in message and method.startswith("notifications/"):
            if method == "notifications/cancelled" and session:
                self._client_face.cancel(session, params, bearer)
            return Answer(202, b"")
        if number is None:
            return Answer(400, _error(None, _INVALID_REQUEST, "a request needs an id"))
        begun = ""
        try:
            answer = await self._dispatch(method, params, bearer)
            if answer is None:
                answer, begun = await self._client_face.answer(number, method, params, bearer, session)
        except GatewayError as error:
            answer = failed(error)
        except InvalidParams as error:
            return Answer(200, _error(number, _INVALID_PARAMS, str(error)))
        except Refused:
            raise
        except Exception:  # boundary: a defect here ends this request, and no other
            log.exception("serve.request_failed", method=method[:100])
            return Answer(500, _error(number, _INTERNAL, "a defect of this server; its log has more"))
        if answer is None:
            return Answer(404, _error(number, _NO_METHOD, f"unknown method {method[:100]!r}"))
        return Answer(200, b'{"jsonrpc":"2.0","id":%s,%s}' % (json.dumps(number).encode(), answer), session=begun)

    async def _dispatch(self, method: str, params: dict[str, Any], bearer: Bearer) -> bytes | None:
        """The lease face's answer to one request; None where it is the client face's."""
        if method == "tools/call" and LEASE_META in (params.get("_meta") or ()):
            return await self._lease_face.call(Params(params), bearer)
        if (known := self._lease_face.methods.get(method)) is not None:
            return await known(Params(params), bearer)
        return None

    def _metrics(self) -> bytes:
        leases = self._leases
        bearers = self._admission.bearers
        return exposition(self._counts, bearers, leases=len(leases), granted=leases.granted, freed=leases.freed)


def _error(number: object, code: int, message: str) -> bytes:
    return to_json({"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}})
