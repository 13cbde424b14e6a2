"""What a connection connects to, and what is known beforehand of how to talk to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import mcp_types as mcp
from mcp import Client

from gateway.config.models import Kind, ServerConfig
from gateway.errors import ConfigError
from gateway.transport.address import Address
from gateway.transport.http import HttpTransport
from gateway.transport.link import Link
from gateway.transport.oauth import Authority
from gateway.transport.sse import SseTransport
from gateway.transport.stdio import StdioTransport

Connect = Callable[[ServerConfig, str], Any]
"""The seam for tests and embedders: what `mcp.Client` shall connect to for a server, called once per connection."""


@dataclass(slots=True)
class NegotiatedProtocol:
    """What the first connection to a server learned about its protocol, so that the next ones need not ask."""

    mode: str = "auto"
    discover: mcp.DiscoverResult | None = None
    authority: Authority | None = None
    """Holds the token for all connections to the server."""

    def authority_for(self, config: ServerConfig) -> Authority | None:
        if self.authority is None and config.client_credentials is not None:
            assert config.url is not None
            self.authority = Authority(Address(config.url).url, config)
        return self.authority

    def learn(self, client: Client) -> None:
        self.discover = client.session.discover_result
        self.mode = client.protocol_version if self.discover is not None else "legacy"

    def forget(self) -> None:
        self.mode, self.discover = "auto", None


def target_of(server: str, config: ServerConfig, link: Link, era: NegotiatedProtocol, *, patience_s: float) -> Any:
    """What `mcp.Client` takes for an entry. Raises `ConfigError` as `build` does."""
    match config.kind:
        case Kind.STDIO:
            return StdioTransport(server, config, link)
        case Kind.IN_PROCESS:
            return build(config, server)
        case Kind.HTTP:
            return HttpTransport(config, link, authority=era.authority_for(config), patience_s=patience_s)
        case Kind.SSE:
            return SseTransport(config, link, era.authority_for(config))


def is_ours(target: Any) -> bool:
    """Whether it hands notifications to the link by itself, where a flood of them costs little."""
    return isinstance(target, StdioTransport | HttpTransport | SseTransport)


def build(config: ServerConfig, server: str) -> Any:
    """Call an in-process server's `factory`. Raises `ConfigError` when there is none by that name."""
    module, _, function = (config.factory or "").partition(":")
    try:
        factory = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        remedy = "name an importable function as package.module:function"
        raise ConfigError(
            f"cannot import {config.factory!r}: {error}", key=f"servers.{server}.factory", remedy=remedy
        ) from error
    return factory()
