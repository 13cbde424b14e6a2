"""Post JSON-RPC requests to one host, on the gateway's HTTP connections."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from itertools import count
from typing import Any
from urllib.parse import urlsplit

from pydantic_core import to_json

from gateway.remote.hosts import HostConfig
from gateway.remote.names import CAPABILITIES_META, CLIENT_META, EXTENSION, PROTOCOL, PROTOCOL_META, VERSION
from gateway.transport.delivery import Broke
from gateway.transport.http_address import Origin, tls
from gateway.transport.http_answer import HttpAnswer, HttpFault
from gateway.transport.http_connection import HttpConnections
from gateway.transport.messages import read_json

Json = dict[str, Any]

_PORTS = {"http": 80, "https": 443}
_ENVELOPE: Json = {
    PROTOCOL_META: PROTOCOL,
    CLIENT_META: {"name": "mcp-rollout", "version": version("mcp-rollout")},
    CAPABILITIES_META: {"extensions": {EXTENSION: {"version": VERSION}}},
}
"""What each request of the protocol's version says about its client."""


class Posts:
    """Requests to one host, as many at a time as the gateway may have connections."""

    def __init__(self, host: HostConfig, connections: HttpConnections) -> None:
        self.host, self._connections = host, connections
        address = urlsplit(host.url)
        name = address.hostname or ""
        self._origin = Origin(host.url, address.scheme, name, address.port or _PORTS[address.scheme])
        self._path = (address.path or "/") + (f"?{address.query}" if address.query else "")
        given = {name.lower(): value for name, value in host.headers.items()}
        if host.token is not None:
            given["authorization"] = f"Bearer {host.token.get_secret_value()}"
        headers = {
            "host": address.netloc,
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            # The bound on an answer is one of bytes on the wire, and a compressed one is not read.
            "accept-encoding": "identity",
            "mcp-protocol-version": PROTOCOL,
            **given,
        }
        lines = [f"POST {self._path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        if any(end in line for line in lines for end in "\r\n\0"):
            raise ValueError("a header for the host has a line end in it")
        self._head = "".join(f"{line}\r\n" for line in lines).encode("latin-1")
        self._numbers = count(1)

    async def post(self, method: str, params: Mapping[str, Any], meta: Mapping[str, Any]) -> tuple[HttpAnswer, Json]:
        """Send one request, once; returns the answer's head and its JSON, empty where it has none.

        Raises:
            HttpFault: there is no answer that can be read.
        """
        message = {
            "jsonrpc": "2.0",
            "id": next(self._numbers),
            "method": method,
            "params": {**params, "_meta": {**_ENVELOPE, **meta}},
        }
        body = to_json(message)
        name = params.get("name", "")
        # The protocol mirrors method and name into headers; hosts do not need what no header can carry.
        mirrored = f"mcp-name: {name}\r\n" if isinstance(name, str) and name.isascii() and name.isprintable() else ""
        head = b"%smcp-method: %s\r\n%scontent-length: %d\r\n\r\n" % (
            self._head,
            method.encode(),
            mirrored.encode() if name else b"",
            len(body),
        )
        return await self._exchange(head + body)

    async def _exchange(self, request: bytes) -> tuple[HttpAnswer, Json]:
        # With a slot, as posts to servers: both share the gateway's descriptors.
        connection = await self._connections.take(self._origin, tls, self.host.connect_timeout_s)
        try:
            connection.send(request, answer := HttpAnswer(self.host.max_message_bytes))
            await connection.arrival()
            while not answer.complete:
                await connection.arrival()
        finally:
            # Also when cut: the rest of this answer would be read as that of the connection's next request.
            connection.leave()
        # A page of a proxy, for example; `RemoteHost` decides by the status alone.
        if not answer.is_document:
            return answer, {}
        try:
            return answer, read_json(answer.take())
        except ValueError as error:
            raise HttpFault(Broke.CONTENT, str(error)) from error
