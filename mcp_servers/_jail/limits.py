"""What a run may use. A named tuple, since the child imports it at every start and `dataclasses` is slow to import."""

from __future__ import annotations

from typing import NamedTuple


class Limits(NamedTuple):
    memory_mb: int = 256
    """Address space of the one process there is, the interpreter's own 60 MB included."""
    cpu_s: int = 3
    wall_s: float = 20.0
    """From the moment the code begins. Well beyond `cpu_s`: on a busy machine code that computes is not cut by it."""
    start_s: float = 30.0
    """Until then: starting the interpreter on a busy machine."""
    disk_mb: int = 8
    """Of the fresh directory, which is memory too."""
    output_bytes: int = 1 << 20
    """Of standard output and error together, and as much again of results; more ends the run."""
    files: int = 32
    """Open at a time."""
