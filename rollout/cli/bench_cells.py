"""Run the programs of `rollout.bench`, each in its own process, and take medians over repeats."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import typer

CELL_S = 900.0
"""Bound on one program."""
_ROOT = Path(__file__).parents[2]


def run_cell(module: str, *arguments: str, python: str = sys.executable, bound_s: float = CELL_S) -> Any:
    """What a program prints as JSON.

    Args:
        python: an interpreter of another environment, which has nothing of ours and reads the program from here.

    Raises:
        typer.Exit: It ended with an error or not within `bound_s`, which is on standard error.
    """
    path = os.pathsep.join(part for part in (str(_ROOT), os.environ.get("PYTHONPATH")) if part)
    environment = {**os.environ, "PYTHONPATH": path}
    argv = [python, "-m", module, *arguments]
    try:
        done = subprocess.run(argv, stdout=subprocess.PIPE, timeout=bound_s, env=environment, check=False)
    except subprocess.TimeoutExpired:
        sys.stderr.write(f"error: {' '.join(argv[1:])} did not end within {bound_s:g} s\n")
        raise typer.Exit(1) from None
    if done.returncode:
        sys.stderr.write(f"error: {' '.join(argv[1:])} ended with status {done.returncode}\n")
        raise typer.Exit(done.returncode)
    return json.loads(done.stdout)


def medians(runs: Sequence[Any]) -> Any:
    """The runs' common form with the median of each number; what is no number is the first run's."""
    first = runs[0]
    if isinstance(first, Mapping):
        fields = cast("Mapping[str, Any]", first)
        return {name: medians([run[name] for run in runs if name in run]) for name in fields}
    numbers = [run for run in runs if isinstance(run, int | float) and not isinstance(run, bool)]
    return round(statistics.median(numbers), 4) if len(numbers) == len(runs) else first
