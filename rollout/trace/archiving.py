"""Archive journals during a rollout: a separate process converts each, and a thread waits for it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

ARCHIVE_TIMEOUT_S = 1800.0
"""Seconds for one journal at a low priority; after that the process ends and the journal stays."""
# The priority before the imports, which take a second of processor time.
_COMMAND = "import os, sys; os.nice(10); from rollout.trace.archive import main; sys.exit(main(sys.argv[1]))"


class Archiver:
    """Archives journals one after the other. A journal that cannot be archived stays, and is logged."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._one_at_a_time = threading.Lock()

    def start(self, journal: Path) -> None:
        """Archive a closed journal in the background; returns at once.

        A thread, since starting a process and waiting for it would hold the event loop. It runs no Python code in
        between, and does not keep the program from ending: the process then finishes by itself.
        """
        thread = threading.Thread(target=self._archive, args=[journal], name="archive", daemon=True)
        self._threads = [each for each in self._threads if each.is_alive()] + [thread]
        thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Wait until every journal was archived; returns whether that is so."""
        end = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _archive(self, journal: Path) -> None:
        # Modules that a parent found through `sys.path` only, as in a Ray worker, are found by the child too.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with self._one_at_a_time:
            try:
                done = subprocess.run(
                    [sys.executable, "-c", _COMMAND, journal],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    timeout=ARCHIVE_TIMEOUT_S,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                log.warning("journal not archived", journal=str(journal), problem=str(error))
                return
        if done.returncode:
            problem = done.stdout.decode(errors="replace").strip()[-2000:]
            log.warning("journal not archived", journal=str(journal), problem=problem)
