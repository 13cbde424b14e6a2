"""How much memory something took at its worst, where the kernel can tell."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def peak_growth() -> Iterator[Callable[[], int]]:
    """Within the block, the yielded function tells by how many bytes this process has grown since, at its worst."""
    try:
        Path("/proc/self/clear_refs").write_text("5")  # sets the peak to what is resident now
    except OSError:
        pytest.skip("the kernel does not let this process reset its peak")
    before = _status("VmRSS")
    yield lambda: _status("VmHWM") - before


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {field} here")
