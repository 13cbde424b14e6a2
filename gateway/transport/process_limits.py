"""Memory and CPU time of a server's processes: what the kernel is told, and what a death says about it.

Memory is limited by RLIMIT_DATA, private writable memory, which is what a program fills. RLIMIT_AS would count address
space as well, of which node, Go and Java reserve hundreds of megabytes that they never touch. A limit holds for
each process of the server, not for their sum.
"""

from __future__ import annotations

import re
import resource
import signal
from pathlib import Path

from gateway.config.models import ServerConfig

_GRACE_S = 5
"""Between SIGXCPU, which names the reason, and SIGKILL for a server that ignores it."""
_ABORTS = frozenset({signal.SIGABRT, signal.SIGTRAP, signal.SIGILL, signal.SIGSEGV, signal.SIGBUS})
_LAST_WORDS = re.compile(
    rb"out of memory|cannot allocate|memoryerror|bad_alloc|allocation fail|can't start new thread", re.IGNORECASE
)
_NEARLY = 0.9
"""Of the limit: a program that hangs with so much in use hangs for want of more."""


def rlimits(config: ServerConfig) -> str:
    """The entry's limits as the guard takes them."""
    limits: list[str] = []
    if config.max_memory_mb is not None:
        size = config.max_memory_mb << 20
        limits.append(f"DATA={size}:{size}")
    if config.max_cpu_s is not None:
        limits.append(f"CPU={config.max_cpu_s}:{config.max_cpu_s + _GRACE_S}")
    return ",".join(limits) or "-"


def out_of_memory(config: ServerConfig, pid: int, stderr: bytes) -> str:
    """Half a sentence where a process that still runs has no memory left by its entry's limit; empty elsewhere."""
    if config.max_memory_mb is None:
        return ""
    try:
        # The sixth number: pages of data and stack, which is what RLIMIT_DATA counts.
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[5])
    except (OSError, ValueError, IndexError):
        pages = 0
    full = pages * resource.getpagesize() >= _NEARLY * (config.max_memory_mb << 20)
    return f"it used up its {config.max_memory_mb} MB of memory" if full or _LAST_WORDS.search(stderr) else ""


def exhausted(config: ServerConfig, status: int, stderr: bytes) -> str:
    """What the process used up by the way it ended, as half a sentence; empty where no limit of the entry ended it.

    Args:
        status: Exit status, or minus the signal.
    """
    # A shell that ran the server reports its signal as 128 and more.
    number = -status if status < 0 else status - 128
    if config.max_cpu_s is not None and number == signal.SIGXCPU:
        return f"it used up its {config.max_cpu_s} s of CPU time"
    if config.max_memory_mb is not None and status != 0 and (number in _ABORTS or _LAST_WORDS.search(stderr)):
        return f"it used up its {config.max_memory_mb} MB of memory"
    return ""
