"""In the copies of `lab.benchmarks.mutations`: notes which test runs, how each ends, and which test reaches a site.

A pytest plugin (`-p mutation_probe`); and what a statement inserted before a site calls, in any process of a test.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # most processes that reach a site are not pytest's
    import pytest

PLACE = Path(__file__).with_name("mutation_probe_notes")
_current = ""
_seen = set[tuple[int, str]]()
_started = 0.0
_pytest = 0
_ends = 0.0


def hit(site: int) -> None:
    """Raises where a process may not open files; the caller ignores that."""
    test = _current if os.getpid() == _pytest else (PLACE / "current").read_text()
    if (site, test) not in _seen:
        _seen.add((site, test))
        with (PLACE / "hits").open("a") as file:
            file.write(f"{site}\t{test}\n")


def pytest_sessionstart() -> None:
    global _pytest, _ends
    _pytest, _ends = os.getpid(), time.monotonic() + float((PLACE / "budget").read_text())


def pytest_runtest_setup() -> None:
    if time.monotonic() > _ends:
        import pytest

        pytest.skip("no time is left")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Only the tests and files that `chosen` names, in its order of files."""
    chosen = (PLACE / "chosen").read_text().splitlines()
    files = {name.split("::")[0]: place for place, name in reversed(list(enumerate(chosen)))}
    names = set(chosen)
    kept = [item for item in items if names & {item.nodeid, item.nodeid.split("::")[0]}]
    config.hook.pytest_deselected(items=list(set(items).difference(kept)))
    items[:] = sorted(kept, key=lambda item: files[item.nodeid.split("::")[0]])


def pytest_runtest_logstart(nodeid: str) -> None:
    global _current, _started
    _current, _started = nodeid, time.monotonic()
    (PLACE / "current").write_text(nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    with (PLACE / "tests").open("a") as file:
        file.write(f"{report.outcome}\t{report.when}\t{time.monotonic() - _started:.2f}\t{report.nodeid}\n")
