"""Measure a process: CPU time, memory. Standard library only, for peers in other environments too."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path


def cpu_s(pid: int) -> float:
    """User and system time of a process, of all its threads, in seconds. Raises OSError where there is none."""
    # The clock that glibc's clock_getcpuclockid gives. /proc/PID/stat counts whole ticks of 10 ms, user and system time
    # apart: of the 13 ms that a forked server has spent it shows 4.
    return time.clock_gettime(~pid << 3 | 2)


def descendants() -> set[int]:
    """All processes below this one."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found, more = set[int](), {os.getpid()}
    while more:
        more = {pid for pid, parent in parents.items() if parent in more}
        found |= more
    return found


def cpu_by_process(pids: Iterable[int]) -> dict[int, float]:
    """As `cpu_s`, of those processes that still live."""
    found: dict[int, float] = {}
    for pid in pids:
        try:
            found[pid] = cpu_s(pid)
        except OSError:
            continue
    return found


def cpu_since_s(before: Mapping[int, float], pids: Iterable[int]) -> float:
    """CPU time that the living ones of `pids` have spent since `before`; all of it, of those that it does not have."""
    # Process by process, since the time of one that has ended since is gone: a difference of two sums would take what
    # it had spent before off what the others spend now.
    return sum(spent - before.get(pid, 0.0) for pid, spent in cpu_by_process(pids).items())


def page_faults(pids: Iterable[int]) -> dict[int, int]:
    """Page faults without reading from disk of those processes that still live, since each began."""
    found: dict[int, int] = {}
    for pid in pids:
        try:
            found[pid] = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])
        except OSError:
            continue
    return found


def memory_kb(pid: int) -> int:
    """Proportional set size in KiB: shared pages count in part."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    raise RuntimeError(f"/proc/{pid}/smaps_rollup has no Pss")


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
