"""Run the programs that measure, each in a process of its own, and report medians of their figures."""

from __future__ import annotations

import json
import logging
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import structlog
import typer

from mcp_rollout.gateway.errors import ConfigError, GatewayError
from mcp_rollout.gateway.logs import configure_logs
from mcp_rollout.rollout.cli.options import output_console, print_json

Repeats = Annotated[int, typer.Option(min=1, help="Runs; medians are reported.")]
CELL_S = 900.0
"""Bound on one program."""
_INTERRUPTED = 130
_ROOT = Path(__file__).parents[2]


def print_figures(measured: Callable[[], Any]) -> None:
    """Print what was measured as JSON, and nothing else but errors, each in a line: the main of such a program."""
    logging.disable(logging.WARNING)
    configure_logs(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        found = measured()
    except KeyboardInterrupt:  # of the terminal, which interrupts the command as well; that says so
        raise SystemExit(_INTERRUPTED) from None
    except (ConfigError, GatewayError) as error:
        raise SystemExit(f"error: {error}") from None
    sys.stdout.write(json.dumps(found) + "\n")


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
    """The runs' common form with the median of each number; what is not a number is the first run's."""
    first = runs[0]
    if isinstance(first, Mapping):
        fields = cast("Mapping[str, Any]", first)
        return {name: medians([run[name] for run in runs if name in run]) for name in fields}
    numbers = [run for run in runs if isinstance(run, int | float) and not isinstance(run, bool)]
    return round(statistics.median(numbers), 4) if len(numbers) == len(runs) else first


def report(figures: dict[str, Any], as_json: bool) -> int:
    """Print figures as JSON, or each in a line with its path."""
    if as_json:
        print_json(figures)
    else:
        console = output_console()
        for name, value in _lines(figures):
            console.print(f"{name:>48}  {value}")
    return 0


def _lines(figures: dict[str, Any], above: str = "") -> list[tuple[str, Any]]:
    """Each figure with its path."""
    lines: list[tuple[str, Any]] = []
    for name, value in figures.items():
        if isinstance(value, dict) and value:
            lines += _lines(cast("dict[str, Any]", value), f"{above}{name} / ")
        else:
            lines.append((above + name, cast("Any", value)))
    return lines
