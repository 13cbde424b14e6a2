"""`compare`: paired comparison of two runs over the same rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.cli.options import AsJson, Where, print_json
from mcp_rollout.rollout.cli.output import Console
from mcp_rollout.rollout.evaluation.comparison import (
    COLUMNS,
    COSTS,
    Comparison,
    Difference,
    Flip,
    RowKey,
    compare,
    rows_of,
)
from mcp_rollout.rollout.evaluation.comparison import Row as RunRow
from mcp_rollout.rollout.trace.reader import Traces
from mcp_rollout.rollout.trace.run_record import RunRecord, TokenIds, read_run_records

SHOWN_FLIPS = 10
Runs = dict[str, set[str]]
"""Names of run records by environment."""
app = typer.Typer(add_completion=False)


@app.command("compare")
def compare_runs(
    a: Annotated[Path, typer.Argument(metavar="A", help="The directory of a run's traces.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another run's, or the same one's with other filters.")],
    where: Where = None,
    where_a: Annotated[str | None, typer.Option(metavar="EXPRESSION", help="The same for A alone: step = 0.")] = None,
    where_b: Annotated[str | None, typer.Option(metavar="EXPRESSION", help="The same for B alone: step = 30.")] = None,
    success_at: Annotated[float, typer.Option(help="The least reward that counts as a success.")] = 1.0,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Compare runs whose environments differ; the differences are listed.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Compare two runs over the rows that both played.

    Reports B minus A with 95% intervals, for each environment. Refuses runs with another reward, other tools or no
    common row.
    """
    with Traces(a) as before, Traces(b) as after:
        rows_a, runs_a = _read(before, where, where_a)
        rows_b, runs_b = _read(after, where, where_b)
    differing = list(_differences(a, runs_a, b, runs_b))
    if differing and not anyway:
        remedy = "play both with the same environment, or compare them with --anyway"
        raise ConfigError(f"is not comparable with {a}: {'; '.join(differing)}", file=b, remedy=remedy)
    notes, costs = differing, list(COSTS)
    if not _same_unit(a, runs_a, b, runs_b):
        notes.append("one run counts tokens and the other bytes of text: sampled tokens are not compared")
        costs.remove("sampled_tokens")
    found = compare(rows_a, rows_b, success_at=success_at, costs=costs)
    if not found:
        problem = (
            f"has no row (environment, task and seed) in common with {a}: {_summary(rows_a)} and {_summary(rows_b)}"
        )
        raise ConfigError(problem, file=b, remedy="compare runs of the same environment, split and -n")
    if as_json:
        compared = {comparison.environment: asdict(comparison) for comparison in found}
        print_json({"a": str(a), "b": str(b), "notes": notes, "environments": compared})
        return 0
    console = Console()
    for note in notes:
        console.print(f"note: {note}")
    for comparison in found:
        _print(comparison, console)
    return 0


def _read(traces: Traces, *expressions: str | None) -> tuple[dict[RowKey, RunRow], Runs]:
    where = " AND ".join(f"({expression}\n)" for expression in expressions if expression)
    runs: Runs = {}

    def seen() -> Iterator[dict[str, Any]]:
        for entry in traces.entries(where=where or None, columns=COLUMNS):
            runs.setdefault(entry["environment"], set()).add(entry["run"])
            yield entry

    return rows_of(seen()), runs


def _differences(a: Path, runs_a: Runs, b: Path, runs_b: Runs) -> Iterator[str]:
    """What makes rewards of the two incomparable, for each environment of both."""
    records_a, records_b = read_run_records(a), read_run_records(b)
    for environment in runs_a.keys() & runs_b.keys():
        of_a = [records_a[name] for name in sorted(runs_a[environment]) if name in records_a]
        of_b = [records_b[name] for name in sorted(runs_b[environment]) if name in records_b]
        for what, wanted in (("another reward", _reward), ("other tools", _tools)):
            if of_a and of_b and {wanted(record) for record in of_a} != {wanted(record) for record in of_b}:
                yield f"{environment} had {what}"


def _same_unit(a: Path, runs_a: Runs, b: Path, runs_b: Runs) -> bool:
    """Whether both runs count tokens, or both bytes, as far as their records show."""
    kinds: list[set[TokenIds]] = []
    for path, runs in ((a, runs_a), (b, runs_b)):
        played = set[str]().union(*runs.values())
        kinds.append({record.token_ids for name, record in read_run_records(path).items() if name in played})
    return not all(kinds) or kinds[0] == kinds[1]


def _reward(record: RunRecord) -> str:
    return repr(record.environment.get("reward"))


def _tools(record: RunRecord) -> str:
    return repr(sorted(record.tool_digests.items()))


def _summary(rows: dict[RowKey, RunRow]) -> str:
    names = sorted({environment for environment, _, _ in rows})
    return f"has {len(rows)} rows of {', '.join(names)}" if rows else "has no rows with a reward"


def _print(found: Comparison, console: Console) -> None:
    title = f"{found.environment}: {found.rows} rows in both, {found.only_a} only in A, {found.only_b} only in B"
    table = Table("", "A", "B", "B - A", "95%", title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    named = {"reward": found.reward, "success": found.success} | found.costs
    for name, difference in named.items():
        table.add_row(name.replace("_", " "), *_cells(difference))
    console.print_whole(table)
    _print_flips("succeed in B, not in A", found.gained, console)
    _print_flips("succeed in A, not in B", found.lost, console)


def _cells(found: Difference) -> Sequence[str]:
    interval = "none" if found.low is None else f"[{found.low:+.3f}, {found.high:+.3f}]"
    return f"{found.a:.3f}", f"{found.b:.3f}", f"{found.difference:+.3f}", interval


def _print_flips(what: str, flips: Sequence[Flip], console: Console) -> None:
    if not flips:
        return
    shown = ", ".join(f"{flip.task} (seed {flip.seed})" for flip in flips[:SHOWN_FLIPS])
    more = f" and {len(flips) - SHOWN_FLIPS} more" if len(flips) > SHOWN_FLIPS else ""
    console.print(f"{len(flips)} rows {what}: {shown}{more}")
