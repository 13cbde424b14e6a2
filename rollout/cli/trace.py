"""`trace`: recorded trajectories listed, shown, counted, exported and watched."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, cast

import typer

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.cli.live import watch
from mcp_rollout.rollout.cli.options import AsJson, TraceDirectory, Where, none_found, print_json
from mcp_rollout.rollout.cli.output import Console, json_visible
from mcp_rollout.rollout.cli.trace_export import export
from mcp_rollout.rollout.cli.trace_stats import stats
from mcp_rollout.rollout.cli.trace_view import TokenizerPath, explain, view
from mcp_rollout.rollout.trace.entries import COLUMNS, Entry
from mcp_rollout.rollout.trace.journal import readable
from mcp_rollout.rollout.trace.reader import Traces
from mcp_rollout.rollout.trace.view import render
from mcp_rollout.rollout.viewer.directory import Directory
from mcp_rollout.rollout.viewer.token_view import token_lines

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Read recorded trajectories.")

LISTED = ("id", "environment", "task", "row", "sample", "step", "turns", "reward", "stop_reason")
Sort = Annotated[
    str | None, typer.Option(metavar="COLUMN,...", help="Sort by these columns; a - before one for descending.")
]
Identity = Annotated[str, typer.Argument(metavar="ID", help="The trajectory's id, or an unambiguous beginning.")]
_PLACE = ("id", "run", "began_at")
_SHORT_ID = 8
_LEAST = 12
"""Characters to which a column is cut at most, where a terminal is narrow."""
_NUMBERS = {"reward": ".2f", "elapsed_s": ".1f", "generate_s": ".1f", "lease_wait_s": ".1f", "penalty": ".2f"}


@app.command()
def ls(
    directory: TraceDirectory,
    where: Where = None,
    sort: Sort = None,
    columns: Annotated[
        str | None, typer.Option(metavar="COLUMN,...", help="Columns to show; all: every column.")
    ] = None,
    limit: Annotated[int | None, typer.Option("-n", "--limit", min=1, help="Show at most so many.")] = None,
    as_json: AsJson = False,
) -> int:
    """List trajectories of a directory and its sub-directories, one line each; with --json one object per line.

    A terminal shows the beginnings of ids; in a pipe nothing is cut.
    """
    shown = list(COLUMNS) if columns == "all" or (as_json and columns is None) else _names(columns) or list(LISTED)
    with Traces(directory) as traces:
        entries = traces.entries(where=where, sort=_names(sort), columns=shown, limit=limit)
        if as_json:
            for entry in entries:
                print_json({name: entry[name] for name in shown})
            return 0
        if not print_entries(entries, shown, traces.widths(shown, where)):
            typer.echo(none_found(directory, where), err=True)
    return 0


@app.command()
def show(
    directory: TraceDirectory,
    trajectory: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="The trajectory's id, or an unambiguous beginning.")
    ] = None,
    row: Annotated[int | None, typer.Option(help="The trajectories of this row of the dataset.")] = None,
    worst: Annotated[bool, typer.Option("--worst", help="The one of lowest reward, the latest of equals.")] = False,
    failed: Annotated[bool, typer.Option("--failed", help="Those that failed.")] = False,
    where: Where = None,
    tokenizer: TokenizerPath = None,
    full: Annotated[bool, typer.Option("--full", help="Unfold thinking and long results.")] = False,
    tokens: Annotated[
        bool,
        typer.Option(
            "--tokens",
            help="One line per token of the response: mask, log-probability, what the trainer computed.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Read trajectories turn by turn, thinking folded: the one with this id, or those that the options select."""
    conditions = [f"({where}\n)"] if where else []
    conditions += [] if row is None else [f"row = {row}"]
    conditions += ["failure IS NOT NULL"] if failed else []
    conditions += ["reward IS NOT NULL"] if worst else []
    if not conditions and trajectory is None:
        raise ConfigError("which trajectory?", key="ID", remedy="give an id, --row, --worst, --failed or --where")
    with Traces(directory) as traces:
        if trajectory is not None:
            found = [_find(traces, trajectory)]
        else:
            sort = ["reward", "-step"] if worst else ["row", "sample"]
            where = " AND ".join(conditions)
            found = list(traces.entries(where=where, sort=sort, columns=_PLACE, limit=1 if worst else None))
        if not found:
            raise ConfigError("no such trajectory", file=directory, remedy="see `mcp-rollout trace ls`")
        console, opened = Console(), Directory(traces, tokenizer)
        for entry in found:
            trace = traces.read(entry)
            if as_json:
                typer.echo(json_visible(readable(trace).decode()))
            elif tokens:
                for line in token_lines(trace, opened.texts(trace), traces.trained(entry)):
                    typer.echo(line)
            else:
                # In a pipe no line is broken, so that what is shown can be searched and copied.
                console.print(render(trace, full=full, boxed=console.is_terminal), soft_wrap=not console.is_terminal)
    return 0


app.command()(stats)
app.command()(watch)
app.command()(export)
app.command()(view)
app.command()(explain)


def _find(traces: Traces, beginning: str) -> Entry:
    """The one trajectory whose id begins like this. Raises ConfigError: there is none, or there are several."""
    quoted = beginning.replace("'", "''")
    found = list(traces.entries(where=f"substr(id, 1, {len(beginning)}) = '{quoted}'", columns=_PLACE, limit=2))
    if len(found) != 1:
        problem = "no such trajectory" if not found else "several trajectories begin like this"
        raise ConfigError(problem, file=traces.directory, key=beginning, remedy="see `mcp-rollout trace ls`")
    return found[0]


def _names(given: str | None) -> list[str]:
    return [name.strip() for name in given.split(",")] if given else []


def print_entries(entries: Iterable[Entry], columns: Sequence[str], longest: Sequence[int]) -> bool:
    """Print a header and a line for each entry; returns whether there was one.

    Args:
        longest: length of the longest value of each column.
    """
    widths = [max(length, len(name)) for name, length in zip(columns, longest, strict=True)]
    widths = [min(width, 7) if name in _NUMBERS else width for name, width in zip(columns, widths, strict=True)]
    is_terminal = sys.stdout.isatty()
    if is_terminal:
        widths = _fitted(widths, columns, shutil.get_terminal_size().columns)
    found = False
    for entry in entries:
        if not found:
            _print_line(columns, widths, is_cut=is_terminal)
        found = True
        _print_line([_cell(name, entry[name]) for name in columns], widths, is_cut=is_terminal)
    return found


def _fitted(widths: Sequence[int], columns: Sequence[str], room: int) -> list[int]:
    fitted = [_SHORT_ID if name == "id" else width for name, width in zip(columns, widths, strict=True)]
    while sum(fitted) + 2 * len(fitted) > room and max(fitted) > _LEAST:
        fitted[fitted.index(max(fitted))] -= 1
    return fitted


def _print_line(cells: Sequence[str], widths: Sequence[int], *, is_cut: bool) -> None:
    fitted = [
        (f"{cell[: width - 1]}…" if len(cell) > width and width > _SHORT_ID else cell[:width]) if is_cut else cell
        for cell, width in zip(cells, widths, strict=True)
    ]
    typer.echo("  ".join(cell.ljust(width) for cell, width in zip(fitted, widths, strict=True)).rstrip())


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float) and name in _NUMBERS:
        return format(value, _NUMBERS[name])
    if isinstance(value, dict):
        counts = cast("dict[str, float]", value)
        value = {key: round(each, 3) for key, each in counts.items()}
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return str(value).lower() if isinstance(value, bool) else str(value)
