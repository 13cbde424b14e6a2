"""Process settings of a kit server: garbage collector and limit of open files."""

from __future__ import annotations

import gc
import logging
import resource
from typing import Any, cast

THRESHOLDS = (50_000, 20, 100)
"""Allocations per collection of the youngest generation; collections of a generation per collection of the next."""


def plain_tracebacks() -> None:
    """Replaces the SDK's log handler: rich draws a tool's traceback in hundreds of times the time of its call."""
    root = logging.getLogger()
    for handler in root.handlers[:]:
        # The SDK installs it where there is none; a program's own may write anywhere else.
        if type(handler).__module__ == "rich.logging" and cast(Any, handler).console.stderr:
            plain = logging.StreamHandler()
            plain.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
            root.removeHandler(handler)
            root.addHandler(plain)


def tune_collector() -> None:
    """Exempts what exists now from garbage collection, and collects less often.

    A server that holds thousands of worlds otherwise spends a quarter of its time on walking them: nearly nothing that
    a call makes is part of a cycle.
    """
    # First, since garbage that is frozen is never freed.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


def raise_open_files() -> None:
    """Raises the soft limit of open files to the hard one: each call in progress over HTTP holds a connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The kernel refuses more than fs.nr_open, by default 1 << 20, even where the hard limit is infinite.
    limit = hard if hard != resource.RLIM_INFINITY else max(soft, 1 << 20)
    if soft != limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
