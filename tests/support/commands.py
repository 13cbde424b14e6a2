"""The command line within the tests' own process, for tests whose subject is not the process."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rollout.cli.app import main

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Done:
    """What a command wrote, and its exit status."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def mcp_rollout(*arguments: str | Path, cwd: Path = ROOT) -> Done:
    """Run a command as its program does: with its arguments, in a directory, until it exits."""
    out, err, status = io.StringIO(), io.StringIO(), 0
    with (
        patch.dict(os.environ, {"COLUMNS": "80"}),
        patch.object(sys, "argv", ["mcp-rollout", *map(str, arguments)]),
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
    return Done(status, out.getvalue(), err.getvalue())
