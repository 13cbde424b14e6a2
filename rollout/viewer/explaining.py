"""The explanation of a directory for the page, computed in a thread while the page is open already."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import structlog

from gateway.errors import ConfigError
from rollout.viewer.explain import explain
from rollout.viewer.pages import Pages
from rollout.viewer.reading import QUERY_TIMEOUT_S, Refreshing

log = structlog.get_logger(__name__)

AGAIN_S = 30.0
"""Seconds after which an explanation is computed again, if the run went on."""


class Explaining:
    """Keeps one explanation.

    Args:
        refreshing: keeps the index.
        tokenizer: as for `Pages`.
    """

    def __init__(self, refreshing: Refreshing, tokenizer: Path | None) -> None:
        self._refreshing, self._tokenizer = refreshing, tokenizer
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="explain")
        self._pages: Pages | None = None
        self._running: Future[dict[str, Any]] | None = None
        self._last: dict[str, Any] = {"status": "computing"}
        self._at, self._version = -AGAIN_S, -1

    async def found(self) -> dict[str, Any]:
        """The last explanation, or that it is being computed."""
        if self._running is not None and self._running.done():
            self._last, self._running = self._running.result(), None
        is_old = time.monotonic() - self._at > AGAIN_S
        if self._running is None and is_old and not self._refreshing.is_indexing:
            self._at = time.monotonic()
            self._running = self._pool.submit(self._compute)
        return self._last

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _compute(self) -> dict[str, Any]:
        try:
            if self._pages is None:
                # Opened here: SQLite's connections may be used only in the thread that opened them.
                self._pages = Pages(self._refreshing.traces.beside(query_timeout_s=QUERY_TIMEOUT_S), self._tokenizer)
            version = self._pages.version()
            if version == self._version:
                return self._last
            found = explain(self._pages).record()
        except Exception as error:  # boundary of the thread: the page shows it, and the next time may do better
            # The version as well: SQLite counts it by connection, so that the next one's may be the same number.
            self._pages, self._version = None, -1
            if not isinstance(error, ConfigError):
                log.exception("not explained")
            return {"status": "done", "findings": [], "absent": [], "problem": str(error)}
        self._version = version
        return found
