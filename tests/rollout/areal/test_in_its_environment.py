"""The tests that import AReaL, run by the interpreter that has it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from areal_run import AREAL_PYTHON, needs_areal


@pytest.mark.full
@pytest.mark.timeout(1800)
@needs_areal
def test_what_imports_areal_passes_where_it_is_installed() -> None:
    command = [AREAL_PYTHON, "-m", "pytest", "-q", Path(__file__).parent, "-m", "not gpu"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-8000:] + done.stderr[-2000:]
