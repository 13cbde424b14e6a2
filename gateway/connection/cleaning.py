"""What a connection hands on, without the secrets of its server: errors, results, texts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from gateway.config.models import ServerConfig
from gateway.connection.secrets import Secrets
from gateway.errors import GatewayError
from gateway.transport.target import NegotiatedProtocol
from gateway.types import ToolDefinition, ToolResult

Broken = TypeVar("Broken", bound=GatewayError)


class Cleaning:
    """The secrets of an entry, and the token in use."""

    def __init__(self, config: ServerConfig, era: NegotiatedProtocol) -> None:
        self._secrets = Secrets(config)
        self._era = era

    def error(self, error: Broken) -> Broken:
        """The same error; where its message had a secret in it, without its cause too, which may quote it."""
        message = str(error)
        if (clean := self.text(message)) != message:
            error.args, error.__cause__, error.__suppress_context__ = (clean,), None, True
        return error

    def result(self, result: ToolResult) -> ToolResult:
        """A trace would keep what is in it, and a policy would learn it."""
        if not self._secrets and self._era.authority is None:
            return result
        content = tuple(
            replace(block, text=self.json(block.text), uri=self.json(block.uri)) for block in result.content
        )
        meta, structured = self.json(dict(result.meta)), self.json(result.structured)
        return replace(result, content=content, structured=structured, meta=meta)

    def json(self, value: Any) -> Any:
        self._note_token()
        return self._secrets.clean_json(value)

    def text(self, text: str, *, cut_before: bool = False) -> str:
        self._note_token()
        return self._secrets.clean(text, cut_before=cut_before)

    def tells(self, tool: ToolDefinition) -> bool:
        """Whether a tool's definition has a secret in it. It is shown as it was sent: another text is another tool."""
        held = {"name": tool.name, **tool.pinned}
        return self.json(held) != held

    def _note_token(self) -> None:
        if self._era.authority is not None and self._era.authority.token is not None:
            self._secrets.add(self._era.authority.token)
