"""Redact the secrets of all servers of a configuration before anything is written to a cassette."""

from __future__ import annotations

from typing import Any

from gateway.config.models import GatewayConfig
from gateway.connection.redaction import Secrets


class CassetteSecrets:
    """The secrets of all servers of a configuration, which no cassette keeps."""

    def __init__(self, config: GatewayConfig) -> None:
        self._secrets = [Secrets(entry) for entry in config.servers.values()]

    def redact(self, value: Any) -> Any:
        """A JSON value without them."""
        for secrets in self._secrets:
            value = secrets.redact_json(value)
        return value
