"""`bench`: measure on this machine what a user's own servers cost, each figure beside its peer in the same run.

Other load of the machine affects both sides alike, so that the ratios are what can be relied on.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, cast

import anyio
import typer

from gateway.leases.opening import descriptors_of, processes_at_once
from rollout.bench.leases import measure_leases
from rollout.cli.options import AsJson, EnvironmentsDir, File, load_target, output_console, print_json

Repeats = Annotated[int, typer.Option(min=1, help="Runs; medians are reported.")]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Measure what servers cost on this machine: leases, and starts of processes.",
)
CELL_S = 900.0
"""Bound on one program."""
_ROOT = Path(__file__).parents[2]


@app.command("lease")
def bench_lease(
    file: File = "retail",
    leases: Annotated[int, typer.Option("-n", min=2, help="How many leases.")] = 50,
    repeats: Repeats = 1,
    as_json: AsJson = False,
    environments_dir: EnvironmentsDir = None,
) -> int:
    """Measure a lease of these servers, reset included, beside resets by the SDK's own clients.

    `cold_s` is the gateway's start and the first lease with a reset. It leaves out one lease between them, which finds
    a task to reset to.
    """
    config = load_target(file, environments_dir).config
    return report(medians([anyio.run(measure_leases, config, leases) for _ in range(repeats)]), as_json)


@app.command("start")
def bench_start(
    forks: Annotated[int, typer.Option(min=1, help="Processes that are forked and held.")] = 200,
    spawns: Annotated[int, typer.Option(min=1, help="Processes that are spawned and held.")] = 6,
    module: Annotated[str, typer.Option("-m", help="The server, as a module of Python.")] = "mcp_servers.retail",
    repeats: Repeats = 1,
    as_json: AsJson = False,
) -> int:
    """Compare starting a process of a Python server by fork with spawning it, and lease forks that are ready."""
    if not _is_module(module):
        raise typer.BadParameter(f"there is no module {module}", param_hint="-m")
    if (most := processes_at_once()) < forks:
        raise typer.BadParameter(
            f"this process's limit of open files is enough for {most}; raise it (ulimit -Hn {descriptors_of(forks)})",
            param_hint="--forks",
        )
    given = [str(forks), str(spawns), "-m", module]
    return report(medians([run_cell("rollout.bench.starts", *given) for _ in range(repeats)]), as_json)


def _is_module(name: str) -> bool:
    """Whether `python -m` finds it: with the current directory on its path, and without importing anything."""
    top, *below = name.split(".")
    found = PathFinder.find_spec(top, [os.getcwd()]) or find_spec(top)
    for number, _ in enumerate(below, 2):
        path = list(found.submodule_search_locations or ()) if found is not None else []
        found = PathFinder.find_spec(".".join(name.split(".")[:number]), path)
    return found is not None


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
