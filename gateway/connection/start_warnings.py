"""Warnings about what servers offer at a gateway's start."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

import structlog

from gateway.catalogue.hidden_text import HiddenText, plain


class _Found(Protocol):
    @property
    def malformed(self) -> tuple[str, ...]: ...
    @property
    def tools_with_secrets(self) -> tuple[str, ...]: ...


def warn_of_definitions(log: structlog.stdlib.BoundLogger, found: Mapping[str, _Found]) -> None:
    """Log, by server, tools that cannot be used and tools that contain secrets of their entry."""
    for server, offered in found.items():
        for problem in offered.malformed:
            log.warning("server.tool_malformed", server=server, problem=problem)
        if offered.tools_with_secrets:
            log.warning("server.secret_in_tools", server=server, tools=[*map(plain, offered.tools_with_secrets)])


def warn_of_hidden_text(log: structlog.stdlib.BoundLogger, found: Mapping[str, Collection[HiddenText]]) -> None:
    """Log, by server, invisible characters."""
    for server, findings in found.items():
        if findings:
            log.warning("server.hidden_text", server=server, findings=[str(each) for each in findings])
