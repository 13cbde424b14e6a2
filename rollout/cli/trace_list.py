"""Lines of `trace ls`: columns as wide as their longest value, printed as they come."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any, cast

import typer

from rollout.trace.entries import Entry

_SHORT_ID = 8
_LEAST = 12
"""Characters to which a column is cut at most, where a terminal is narrow."""
_NUMBERS = {"reward": ".2f", "elapsed_s": ".1f", "generate_s": ".1f", "lease_wait_s": ".1f", "penalty": ".2f"}


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
