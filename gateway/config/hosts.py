"""The address of a gateway that serves worlds (`mcp-rollout serve`)."""

from __future__ import annotations

from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from gateway.config.models import Seconds
from gateway.config.variables import expand


class HostConfig(BaseModel):
    """One host, and how long it may be silent."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    """Where it serves, `http://name:port/mcp`."""
    token: SecretStr | None = None
    """Its bearer token; write a variable: `${NAME}`."""
    headers: dict[str, str] = Field(default={}, repr=False)
    """Added to every request."""
    connect_timeout_s: Seconds = 5
    """For one connection."""
    lost_after_s: Seconds = 15
    """For how long a host may be out of reach before its worlds count as lost."""
    max_message_bytes: int = Field(default=64 << 20, ge=1024)
    """Longest answer; the host bounds each server's own messages."""

    @field_validator("url")
    @classmethod
    def _names_a_host(cls, value: str) -> str:
        found = urlsplit(value)
        if found.scheme not in ("http", "https") or not found.hostname or found.username:
            raise ValueError("url must begin with http:// or https://, name a host, and hold no password")
        return value

    @field_validator("token", mode="before")
    @classmethod
    def _expanded(cls, value: object) -> object:
        return expand(value) if isinstance(value, str) else value
