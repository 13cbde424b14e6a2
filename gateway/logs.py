"""How logs are written where the user has not configured structlog."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog
from structlog.dev import ConsoleRenderer, plain_traceback
from structlog.types import Processor

from mcp_rollout.gateway.catalogue.hidden_text import visible


def configure_logs(*processors: Processor, stream: TextIO | None = None, **options: Any) -> None:
    """Configure structlog: tracebacks without local variables, and no characters that act on a terminal.

    structlog's own tracebacks quote the variables of each frame, among them headers with tokens and environments.

    Args:
        processors: Come first.
        stream: Where logs are written, in colours if it is a terminal; by default standard output, as structlog does.
        options: Of `structlog.configure`.
    """
    renderer = ConsoleRenderer(colors=stream is not None and stream.isatty(), exception_formatter=plain_traceback)
    before = structlog.get_config()["processors"][:-1]
    structlog.configure(
        processors=[*processors, *before, structlog.processors.format_exc_info, _visible_values, renderer],
        logger_factory=structlog.PrintLoggerFactory(stream),
        **options,
    )


def configure_logs_by_default() -> None:
    """As `configure_logs`, for a process in which nothing else has configured structlog."""
    if not structlog.is_configured():
        configure_logs()


def _visible_values(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = visible(value)
    return event
