"""Redact a server's secrets: find them in its entry, and replace them in every text that leaves its connection."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar, cast

import anyio.to_thread
from pydantic_core import to_json

from mcp_rollout.gateway.config.models import GatewayConfig, ServerConfig
from mcp_rollout.gateway.connection.secret_patterns import SecretPattern
from mcp_rollout.gateway.connection.secret_values import SHORTEST, EntryTexts
from mcp_rollout.gateway.errors import GatewayError
from mcp_rollout.gateway.transport.link import Link
from mcp_rollout.gateway.types import ToolDefinition, ToolResult

REDACTED = "[secret]"
_MOST_AT_ONCE = 1 << 18
"""Bytes of a result that are searched without a thread."""


def entry_texts(config: ServerConfig) -> EntryTexts:
    values = {f"env.{name}": value for name, value in config.env.items()}
    values |= {f"headers.{name}": value for name, value in config.headers.items()}
    return EntryTexts(values, config.args, config.url, config.secrets or ())


class Secrets:
    """The secret values of one server, as `EntryTexts` finds them, searched for as `SecretPattern` spells them.

    Values of fewer than 6 characters are not searched for.
    """

    def __init__(self, config: ServerConfig) -> None:
        texts = entry_texts(config)
        found = {*texts.secrets(), *texts.in_json([change.fixed for change in config.tools.change.values()])}
        patterns = [SecretPattern(value) for value in found if len(value) >= SHORTEST]
        self._patterns = sorted(patterns, key=lambda each: len(each.value), reverse=True)
        """Longer values first, since one may contain another."""

    def __bool__(self) -> bool:
        """Whether there is anything to redact."""
        return bool(self._patterns)

    def redact(self, text: str, *, cut_before: bool = False) -> str:
        """The text with every secret value replaced. Redact before cutting a text: half a secret is not found.

        Args:
            cut_before: Whether the text is the end of a longer one, and may begin with the rest of a secret.
        """
        if cut_before:
            usual = [spelling for each in self._patterns for spelling in each.usual]
            text = text[max((_overlap(spelling, text) for spelling in usual), default=0) :]
        return _without(self._patterns, text)

    def redact_blocks(self, texts: Sequence[str]) -> list[str]:
        """Texts that are shown one after another, without secrets: neither in one of them nor split over two."""
        found, joined = list(texts), "".join(texts)
        # One look at all of them, since a server may send thousands.
        held = [each for each in self._patterns if each.may_be_in(joined)]
        for index in range(len(found) - 1 if held else 0):
            for each in held:
                before, after = found[index][-each.longest :], found[index + 1][: each.longest]
                for begin, end in each.places(before + after):
                    if begin < len(before) < end:
                        found[index] = found[index][: len(found[index]) - len(before) + begin] + REDACTED
                        found[index + 1] = found[index + 1][end - len(before) :]
        return [_without(held, text) for text in found] if held else found

    def redact_json(self, value: Any) -> Any:
        """The same for every string inside a JSON value, keys included."""
        if not self._patterns or not self._within(value):
            return value
        if isinstance(value, str):
            return self.redact(value)
        if isinstance(value, Mapping):
            items = cast("Mapping[str, Any]", value).items()
            return {self.redact(name): self.redact_json(inner) for name, inner in items}
        if isinstance(value, list):
            return [self.redact_json(inner) for inner in cast("list[Any]", value)]
        return value

    def _within(self, value: Any) -> bool:
        """Whether a JSON value may contain a secret: a search in its text takes a tenth of the time of a walk."""
        if isinstance(value, str) or not value:
            return True
        try:
            text = to_json(value)
        except ValueError:
            return True
        return any(each.may_be_in(text) for each in self._patterns)


Broken = TypeVar("Broken", bound=GatewayError)


class Redactor:
    """Redacts what one connection passes on: errors, results, texts."""

    def __init__(self, config: ServerConfig) -> None:
        self._secrets = Secrets(config)
        self.needed = bool(self._secrets)
        """Whether there are secrets."""

    def error(self, error: Broken) -> Broken:
        """The same error; where its message contained a secret, without its cause too, which may quote it."""
        message = str(error)
        if (redacted := self.text(message)) != message:
            error.args, error.__cause__, error.__suppress_context__ = (redacted,), None, True
            error.problem = self.text(error.problem)
        return error

    async def result(self, result: ToolResult) -> ToolResult:
        """The same result without secrets, which a trace would keep and a policy would learn."""
        try:
            size = len(to_json([[block.text for block in result.content], result.structured, result.meta]))
        except ValueError:  # half a surrogate pair
            size = _MOST_AT_ONCE
        if size < _MOST_AT_ONCE:
            return self._redacted(result)
        # A text that nearly has secrets takes up to a second for each of them; other tasks run meanwhile.
        return await anyio.to_thread.run_sync(self._redacted, result)

    def _redacted(self, result: ToolResult) -> ToolResult:
        secrets = self._secrets
        texts = secrets.redact_blocks([block.text for block in result.content])
        content = tuple(
            replace(
                block,
                text=text,
                uri=secrets.redact_json(block.uri),
                mime_type=secrets.redact_json(block.mime_type),
            )
            for block, text in zip(result.content, texts, strict=True)
        )
        meta, structured = secrets.redact_json(dict(result.meta)), secrets.redact_json(result.structured)
        return replace(result, content=content, structured=structured, meta=meta)

    def json(self, value: Any) -> Any:
        return self._secrets.redact_json(value)

    def text(self, text: str, *, cut_before: bool = False) -> str:
        return self._secrets.redact(text, cut_before=cut_before)

    def leaks(self, tool: ToolDefinition) -> bool:
        """Whether a tool's definition contains a secret. It is shown as sent: with another text it is another tool."""
        held = {"name": tool.name, **tool.pinned}
        return self.json(held) != held


_MCP_LOGGERS = ("mcp.client.streamable_http", "mcp.client.session")
"""They log text that they cannot read, at levels that are shown by default."""


class _RedactingFilter(logging.Filter):
    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = self._link.redact(record.getMessage()), ()
        # A traceback quotes what could not be read. The call it belongs to ends in an error of ours, which is redacted.
        record.exc_info = record.exc_text = None
        return True


@contextmanager
def redacted_mcp_logs(link: Link) -> Generator[None]:
    """Within the block mcp's own log lines have no secrets of `link`, and no tracebacks."""
    found, redacting = [logging.getLogger(name) for name in _MCP_LOGGERS], _RedactingFilter(link)
    for logger in found:
        logger.addFilter(redacting)
    try:
        yield
    finally:
        for logger in found:
            logger.removeFilter(redacting)


def _without(patterns: Iterable[SecretPattern], text: str) -> str:
    for each in patterns:
        kept, end = list[str](), 0
        for begin, after in each.places(text):
            kept += (text[end:begin], REDACTED)
            end = after
        text = "".join((*kept, text[end:])) if kept else text
    return text


def _overlap(spelling: str, text: str) -> int:
    """How many characters of the text's beginning end the spelling of a secret."""
    return next((size for size in range(len(spelling) - 1, 0, -1) if text.startswith(spelling[-size:])), 0)


class CassetteSecrets:
    """The secrets of all servers of a configuration, which no cassette keeps."""

    def __init__(self, config: GatewayConfig) -> None:
        self._secrets = [Secrets(entry) for entry in config.servers.values()]

    def redact(self, value: Any) -> Any:
        """A JSON value without them."""
        for secrets in self._secrets:
            value = secrets.redact_json(value)
        return value
