"""What mcp logs of its own accord about messages of a server, without that server's secrets."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager

from gateway.transport.link import Link

_LOGGERS = ("mcp.client.streamable_http", "mcp.client.session")
"""They log what they cannot read at levels that are shown by default, the text with it."""


class _Cleaning(logging.Filter):
    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = self._link.clean(record.getMessage()), ()
        # A traceback quotes what could not be read. The call it belongs to ends in an error of ours, which is clean.
        record.exc_info = record.exc_text = None
        return True


@contextmanager
def cleaned(link: Link) -> Generator[None]:
    """Within the block these loggers say nothing that `link` would take out of a text, and no tracebacks."""
    found, cleaning = [logging.getLogger(name) for name in _LOGGERS], _Cleaning(link)
    for logger in found:
        logger.addFilter(cleaning)
    try:
        yield
    finally:
        for logger in found:
            logger.removeFilter(cleaning)
