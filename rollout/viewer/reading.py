"""Threads that read a directory of traces for the server: one keeps the index up to date, others ask it."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Generic, TypeVar

import structlog

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.trace.files import Skipped, files_of
from mcp_rollout.rollout.trace.reader import Traces
from mcp_rollout.rollout.viewer.directory import Directory

log = structlog.get_logger(__name__)
P = TypeVar("P")
T = TypeVar("T")

QUERY_TIMEOUT_S = 20.0
REFRESH_S = 2.0
"""Seconds between two looks at the directory while a page is open."""
IDLE_S = 30.0
"""Seconds after the last request at which the directory is not looked at any more."""
_ENDS_S = 2.0
"""Seconds that the end of the program waits for the index."""
AGAIN_S = 30.0
"""Seconds after which an explanation is computed again, if the run went on."""


class Refreshing:
    """Brings the index up to date in its own thread, so that a page opens before a first indexing ends.

    Use as a context manager.

    Raises:
        ConfigError: there is no such directory.
    """

    def __init__(self, directory: Path) -> None:
        self._opened: Traces | None = None
        self._directory = directory
        self._failure: BaseException | None = None
        self._ready, self._stop = threading.Event(), threading.Event()
        self._last_request = time.monotonic()
        self._seen: set[tuple[str, int, int]] = set()
        self._thread = threading.Thread(target=self._run, name="trace index", daemon=True)
        self.is_indexing = True
        """Whether the first look at the directory has not ended yet."""

    def __enter__(self) -> Refreshing:
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        # Bounded: a first indexing can take minutes, and what it has committed stays for the next time. But where the
        # interpreter ends a thread within native code, the process aborts.
        self._thread.join(_ENDS_S)

    @property
    def traces(self) -> Traces:
        assert self._opened is not None
        return self._opened

    def requested(self) -> None:
        """Note that a page is open."""
        self._last_request = time.monotonic()

    def _run(self) -> None:
        try:
            # In this thread, which alone may use the connection; others open one beside it.
            self._opened = Traces(self._directory)
            self._opened.prepare()
        except Exception as error:  # boundary of the thread: the opener raises it
            self._failure = error
            return
        finally:
            self._ready.set()
        while True:
            if time.monotonic() - self._last_request < IDLE_S:
                self._refresh(self._opened)
            if self._stop.wait(REFRESH_S):
                self._opened.close()
                return

    def _refresh(self, traces: Traces) -> None:
        try:
            files = _files(self._directory, traces.skipped)
            if files != self._seen:
                traces.refresh()
                self._seen = files
        except (ConfigError, OSError, sqlite3.Error) as error:
            log.warning("index not brought up to date", problem=str(error))
        except Exception:  # boundary of the thread: without it every later page would wait for its first look
            log.exception("index not brought up to date")
        self.is_indexing = False


def _files(directory: Path, skipped: Skipped) -> set[tuple[str, int, int]]:
    """Name, size and time of change of the files with traces."""
    stats = [(path, path.stat()) for path in files_of(directory, skipped)]
    return {(str(path), status.st_size, status.st_mtime_ns) for path, status in stats}


class Reader(Generic[P]):
    """Answers questions to the directory in one thread of its own, one after the other.

    Args:
        refreshing: keeps the index.
        opened: what is asked, over a connection of this thread.
    """

    def __init__(self, refreshing: Refreshing, opened: Callable[[Traces], P]) -> None:
        self._refreshing, self._open = refreshing, opened
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="traces")
        self._pages: P | None = None
        self.generation = 0
        """Number of times that the index was opened again."""

    async def run(self, query: Callable[[P], T]) -> T:
        """Run `query` on this reader's pages, in its thread. Raises what the query raises."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._run, query)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, query: Callable[[P], T]) -> T:
        try:
            return query(self._opened())
        except ConfigError as error:
            # A wrong or slow query is an OperationalError, and the asker's. Any other is about the file.
            if not isinstance(error.__cause__, sqlite3.DatabaseError) or isinstance(
                error.__cause__, sqlite3.OperationalError
            ):
                raise
            self._pages = None  # the index was made again, in another file
            self.generation += 1
            return query(self._opened())

    def _opened(self) -> P:
        if self._pages is None:
            self._pages = self._open(self._refreshing.traces.beside(query_timeout_s=QUERY_TIMEOUT_S))
        return self._pages


class Explaining:
    """Keeps an explanation of the directory, computed in a thread while the page is open already.

    Args:
        refreshing: keeps the index.
        opened: what is explained, over a connection of this thread.
        explain: its explanation as values for JSON.
    """

    def __init__(
        self,
        refreshing: Refreshing,
        opened: Callable[[Traces], Directory],
        explain: Callable[[Directory], dict[str, Any]],
    ) -> None:
        self._refreshing, self._open, self._explain = refreshing, opened, explain
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="explain")
        self._directory: Directory | None = None
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
            if self._directory is None:
                # Opened here: SQLite's connections may be used only in the thread that opened them.
                self._directory = self._open(self._refreshing.traces.beside(query_timeout_s=QUERY_TIMEOUT_S))
            version = self._directory.version()
            if version == self._version:
                return self._last
            found = self._explain(self._directory)
        except Exception as error:  # boundary of the thread: the page shows it, and the next time may do better
            # The version as well: SQLite counts it by connection, so that the next one's may be the same number.
            self._directory, self._version = None, -1
            if not isinstance(error, ConfigError):
                log.exception("not explained")
            return {"status": "done", "findings": [], "absent": [], "problem": str(error)}
        self._version = version
        return found
