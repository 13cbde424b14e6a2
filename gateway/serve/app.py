"""The ASGI application: who may ask, what is asked, and the answer as one JSON document."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast

import structlog
from pydantic_core import to_json

from gateway.errors import GatewayError
from gateway.remote.names import EXTENSION, LEASE_META, PROTOCOL, VERSION
from gateway.serve.bearers import Admission, Bearer, Refused
from gateway.serve.config import ServeConfig
from gateway.serve.lease_face import LeaseFace, failed, succeeded
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


class ServeApp:
    """One gateway behind HTTP."""

    def __init__(self, gateway: Gateway, config: ServeConfig, leases: ServedLeases) -> None:
        self._config, self._leases = config, leases
        self._admission, self._counts = Admission(config), Counts()
        self._face = LeaseFace(gateway, config, leases, self._counts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            status, kind, body = await self._answer(scope, receive)
        except Refused as refused:
            self._counts.refused[refused.status] += 1
            status, kind, body = refused.status, _JSON, _error(None, _INVALID_REQUEST, refused.problem)
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
        if status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[int, bytes, bytes]:
        if scope["path"] == "/health":
            status = 503 if self._leases.draining else 200
            return status, _JSON, to_json({"status": "draining" if self._leases.draining else "ok"})
        bearer = self._admission.admit(dict(scope["headers"]))
        match scope["method"], scope["path"]:
            case "POST", "/mcp":
                return await self._post(await self._body(receive), bearer)
            case "GET", "/metrics":
                return 200, CONTENT_TYPE, self._metrics()
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

    async def _post(self, body: bytes, bearer: Bearer) -> tuple[int, bytes, bytes]:
        try:
            message = read_json(body)
        except (ValueError, RecursionError) as error:
            return 400, _JSON, _error(None, -32700, f"the body is no JSON-RPC message: {error}")
        number, method, given = message.get("id"), message.get("method"), message.get("params", {})
        if type(number) not in (int, str) or not isinstance(method, str) or not isinstance(given, dict):
            return 400, _JSON, _error(None, _INVALID_REQUEST, "the body is no JSON-RPC request")
        try:
            answer = await self._dispatch(method, cast("dict[str, Any]", given), bearer)
        except GatewayError as error:
            answer = failed(error)
        except InvalidParams as error:
            return 200, _JSON, _error(number, _INVALID_PARAMS, str(error))
        except Refused:
            raise
        except Exception:  # boundary: a defect here ends this request, and no other
            log.exception("serve.request_failed", method=method[:100])
            return 500, _JSON, _error(number, _INTERNAL, "a defect of this server; its log has more")
        if answer is None:
            return 404, _JSON, _error(number, _NO_METHOD, f"unknown method {method[:100]!r}")
        return 200, _JSON, b'{"jsonrpc":"2.0","id":%s,%s}' % (json.dumps(number).encode(), answer)

    async def _dispatch(self, method: str, params: dict[str, Any], bearer: Bearer) -> bytes | None:
        """The answer of one request; None where the method is unknown."""
        if method == "tools/call" and LEASE_META in (params.get("_meta") or ()):
            return await self._face.call(Params(params), bearer)
        if (known := self._face.methods.get(method)) is not None:
            return await known(Params(params), bearer)
        return _DISCOVERED if method == "server/discover" else None

    def _metrics(self) -> bytes:
        leases = self._leases
        bearers = self._admission.bearers
        return exposition(self._counts, bearers, leases=len(leases), granted=leases.granted, freed=leases.freed)


_DISCOVERED = succeeded(
    {
        "supportedVersions": [PROTOCOL],
        "capabilities": {"tools": {}, "extensions": {EXTENSION: {"version": VERSION}}},
        "serverInfo": {"name": "mcp-rollout", "version": version("mcp-rollout")},
        "resultType": "complete",
        "ttlMs": 0,
        "cacheScope": "private",
    }
)


def _error(number: object, code: int, message: str) -> bytes:
    return to_json({"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}})
