"""The engine's own record of what it generated, one JSON object a line.

Traces can be derived again from it and from nothing that the agent loop wrote.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class EngineLog:
    """Appends records to a file. One `write` call a record, so several servers may share a file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises OSError where the file cannot be opened."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "ab", buffering=0)

    def write(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(record).encode() + b"\n")
