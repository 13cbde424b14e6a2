"""The command line within the tests' own process, for tests whose subject is not the process."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mcp_rollout.rollout.cli.app import main

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
        pytest.MonkeyPatch.context() as patched,
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patched.setenv("COLUMNS", "80")
        patched.setattr(sys, "argv", ["mcp-rollout", *map(str, arguments)])
        try:
            main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
    return Done(status, out.getvalue(), err.getvalue())
