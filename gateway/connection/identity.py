"""A server's identity as it reports it: name, version and protocol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mcp import Client
from mcp.client.extension import advertise

from gateway.types import LEASE_EXTENSION

LEASES = advertise(LEASE_EXTENSION, {"version": 1})
"""What a client declares that can lease worlds."""
_LENGTH = 200
"""Characters that are kept of a name and of a version."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerIdentity:
    """`serverInfo` of the handshake, or of a result's `_meta` from 2026-07-28 on."""

    name: str = ""
    """Empty for a server that does not identify itself."""
    version: str = ""
    protocol: str = ""
    """The protocol version that was negotiated."""


def serves_worlds(client: Client) -> bool:
    """Whether the server is a gateway that leases worlds."""
    return LEASE_EXTENSION in (client.server_capabilities.extensions or {})


def identity_of(client: Client, redact: Callable[[str], str]) -> ServerIdentity:
    """The identity of a connected server, without what `redact` takes out."""
    said = client.server_info
    name, version = (redact(text)[:_LENGTH] for text in ((said.name, said.version) if said else ("", "")))
    return ServerIdentity(name=name, version=version, protocol=client.protocol_version)
