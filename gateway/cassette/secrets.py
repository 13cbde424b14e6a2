"""The secrets that no cassette keeps."""

from __future__ import annotations

from typing import Any

from gateway.config.models import GatewayConfig
from gateway.connection.redaction import Secrets


class CassetteSecrets:
    """The secrets of all servers of a configuration, which no cassette keeps."""

    def __init__(self, config: GatewayConfig) -> None:
        self._secrets = [Secrets(entry) for entry in config.servers.values()]

    def redacted(self, line: str) -> str:
        for secrets in self._secrets:
            line = secrets.redact(line)
        return line

    def redacted_json(self, value: Any) -> Any:
        for secrets in self._secrets:
            value = secrets.redact_json(value)
        return value
