"""The tables of docs/reliability.md."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.benchmarks.faults.judge import Figures
from lab.benchmarks.faults.plan import Fault

BEGIN, END = "<!-- written by lab.benchmarks.faults -->\n", "<!-- end -->\n"
COLUMNS: Mapping[str, Callable[[Figures], int]] = {
    "silently wrong": lambda found: found.silent,
    "ran twice": lambda found: found.twice,
    "another's result": lambda found: found.foreign,
    "other state": lambda found: found.other_state,
    "to another origin": lambda found: found.elsewhere,
    "unread tools": lambda found: found.unread,
    "hangs": lambda found: found.hangs,
    "lost": lambda found: found.lost,
    "error results": lambda found: found.errors,
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One client under one fault."""

    client: str
    best: bool
    fault: Fault | None
    figures: Figures


def pages(cells: Sequence[Cell], versions: Mapping[str, str], missing: Sequence[str], *, seed: str) -> str:
    """Both tables: sums over all faults, and each fault; between them the versions."""
    parts = [_sums(cells, list(versions)), "\n", _versions(versions, missing, seed), "\n"]
    for kind in Fault:
        if rows := [cell for cell in cells if cell.fault is kind]:
            parts += [f"### {kind.capitalize()}\n\n", _by_client(rows), "\n"]
    return "".join(parts)


def write(page: Path, text: str, begin: str = BEGIN, end: str = END) -> None:
    """Replace what is between the two marks."""
    before, _, rest = page.read_text().partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"error: {page} lacks {begin.strip()} or {end.strip()}")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def _versions(versions: Mapping[str, str], missing: Sequence[str], seed: str) -> str:
    found = "; ".join(f"{label}: {version}" for label, version in versions.items())
    without = f" Not measured, since the environment is missing: {', '.join(missing)}." if missing else ""
    return f"Seed {seed}. {found}.{without}\n"


def _head(first: Sequence[str]) -> list[str]:
    names = [*first, *COLUMNS, "recovery, s"]
    return ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]


def _sums(cells: Sequence[Cell], order: Sequence[str]) -> str:
    lines = _head(["client", "settings", "faults", "trajectories"])
    for client in order:
        for best in (False, True):
            found = [cell.figures for cell in cells if cell.client == client and cell.best is best and cell.fault]
            if found:
                sizes = [sum(each.faults for each in found), sum(each.trajectories for each in found)]
                sums = [sum(count(each) for each in found) for count in COLUMNS.values()]
                values = [client, "best" if best else "defaults", *sizes, *sums, _seconds(found)]
                lines.append("| " + " | ".join(map(str, values)) + " |")
    return "\n".join(lines) + "\n"


def _by_client(cells: Sequence[Cell]) -> str:
    """A row for each client: with defaults, and with best settings where they differ."""
    lines = _head(["client", "faults"])
    for client in dict.fromkeys(cell.client for cell in cells):
        both = [cell.figures for cell in sorted(cells, key=lambda cell: cell.best) if cell.client == client]
        values = [client, _pair([str(each.faults) for each in both])]
        values += [_pair([str(count(each)) for each in both]) for count in COLUMNS.values()]
        lines.append("| " + " | ".join([*values, _pair([_seconds([each]) for each in both])]) + " |")
    return "\n".join(lines) + "\n"


def _pair(values: Sequence[str]) -> str:
    return values[0] if len(set(values)) == 1 else " / ".join(values)


def _seconds(found: Sequence[Figures]) -> str:
    """Median of the medians, and the slowest."""
    medians = [each.recover_s for each in found if each.recover_s is not None]
    slowest = [each.slowest_s for each in found if each.slowest_s is not None]
    return f"{statistics.median(medians):.1f}, {max(slowest):.1f}" if medians else "never"
