"""Memory and CPU time of a server's processes: what the kernel is told, and what a death says about it.

Memory is limited by RLIMIT_DATA, private writable memory, which is what a program fills. RLIMIT_AS would count address
space as well, of which node, Go and Java reserve hundreds of megabytes that they never touch. A limit holds for
each process of the server, not for their sum.
"""

from __future__ import annotations

import re
import signal

from gateway.config import ServerConfig

_GRACE_S = 5
"""Between SIGXCPU, which names the reason, and SIGKILL for a server that ignores it."""
_ABORTS = frozenset({signal.SIGABRT, signal.SIGTRAP, signal.SIGILL, signal.SIGSEGV, signal.SIGBUS})
_LAST_WORDS = re.compile(rb"out of memory|cannot allocate|memoryerror|bad_alloc|allocation fail", re.IGNORECASE)


def rlimits(config: ServerConfig) -> str:
    """The entry's limits as the guard takes them."""
    limits: list[str] = []
    if config.max_memory_mb is not None:
        size = config.max_memory_mb << 20
        limits.append(f"DATA={size}:{size}")
    if config.max_cpu_s is not None:
        limits.append(f"CPU={config.max_cpu_s}:{config.max_cpu_s + _GRACE_S}")
    return ",".join(limits) or "-"


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
