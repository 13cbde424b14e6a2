"""How a gateway is served: address, tokens, limits, and every bound in seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from mcp_rollout.gateway.config.calls import Seconds
from mcp_rollout.gateway.errors import ConfigError, InvalidValue
from mcp_rollout.mcp_wire.admission import SHORTEST_TOKEN, is_loopback


class TokenLimits(BaseModel):
    """What the bearer of one token may use at a time."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    leases: int = Field(default=4096, ge=1)
    """Worlds that are leased; further ones wait."""
    waiting: int = Field(default=16384, ge=1)
    """Leases that wait for a world; further ones are refused."""
    calls: int = Field(default=4096, ge=1)
    """Requests under way; further ones are refused, and clients send them again."""
    kept_bytes: int = Field(default=256 << 20, ge=1 << 20)
    """Bytes of outcomes that are kept for repeated calls; beyond it the oldest of a lease are dropped."""
    body_bytes: int = Field(default=256 << 20, ge=1024)
    """Bytes of longer requests that arrive or are answered; where others hold some, what goes beyond is refused."""


class ServeConfig(BaseModel):
    """How a gateway is served."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    """The address to listen at."""
    port: int = Field(default=0, ge=0, le=65535)
    """0 takes a free one."""
    tokens: tuple[SecretStr, ...] = ()
    """Bearer tokens, each with its own leases and limits; without one, every client is the same bearer."""
    client_tokens: tuple[SecretStr, ...] = ()
    """Bearer tokens of MCP clients, which get the policy's tools in worlds of their own, and no leases."""
    allowed_hosts: tuple[str, ...] = ()
    """Names, besides addresses and this machine's own, that a request's Host header may have."""
    limits: TokenLimits = TokenLimits()
    task: str | None = None
    """The task that the worlds of MCP clients are reset to; None resets nothing. Gateways name their own."""
    seed: int = 0
    """The seed of such a reset."""
    max_request_bytes: int = Field(default=8 << 20, ge=1024)
    """Longest request."""
    receive_s: Seconds = 30
    """How long a request may take to arrive whole, from its first byte on; then its connection is closed."""
    unadmitted: int = Field(default=4096, ge=1)
    """Connections that have not shown a token yet; beyond it the oldest is closed."""
    idle_s: Seconds = 60
    """After so many seconds without a request for it, a lease is freed: its client has vanished."""
    client_sessions: int = Field(default=10_000, ge=1)
    """Sessions of MCP clients at a time, in equal parts for the bearers; further ones are refused."""
    answer_s: Seconds = 600
    """How long an MCP client may take to answer a server's request in its stream."""
    drain_s: Seconds = 30
    """How long leases may go on after SIGTERM."""

    @model_validator(mode="after")
    def _secured(self) -> Self:
        if not (self.tokens or self.client_tokens) and not is_loopback(self.host):
            problem = f"{self.host} is reachable from other machines, and there is no token"
            raise InvalidValue(problem, "name a file with one token a line: --token-file; or listen at 127.0.0.1")
        for token in (*self.tokens, *self.client_tokens):
            if len(token.get_secret_value()) < SHORTEST_TOKEN:
                raise InvalidValue(f"a token is shorter than {SHORTEST_TOKEN} characters", "openssl rand -hex 32")
        return self


def read_tokens(path: Path) -> tuple[SecretStr, ...]:
    """The tokens in a file, one a line; empty lines and lines that begin with # are skipped.

    Raises:
        ConfigError: the file cannot be read, or has none.
    """
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", file=path, remedy="name a text file") from error
    tokens = tuple(SecretStr(line) for line in lines if line and not line.startswith("#"))
    if not tokens:
        raise ConfigError("has no token", file=path, remedy="write one a line: openssl rand -hex 32")
    return tokens
