# pyright: basic
# pyarrow ships no types.
"""Traces whose journal grew large, and was sealed into a Parquet file."""

from __future__ import annotations

from pathlib import Path

SUFFIX = ".traces.parquet"


def sealed_records(file: Path) -> list[str]:
    """Each trace's line of JSON. Raises OSError: it cannot be read."""
    from pyarrow import parquet  # half a second to import, for those who need it

    return parquet.read_table(file, columns=["record"]).column("record").to_pylist()
