"""What the demo shows: progress bars, and learning curves as text and as a picture."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

console = Console(highlight=False)


@contextmanager
def bar(description: str, total: int) -> Iterator[tuple[Progress, TaskID]]:
    """Show a progress bar while the block runs."""
    count = TextColumn("{task.completed}/{task.total} steps")
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), count, TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        yield progress, progress.add_task(description, total=total)


def chart(curve: Sequence[float], blind: float, height: int = 12) -> str:
    """Draw a curve of rewards between 0 and 1 in characters, one column per step.

    Args:
        blind: Mean reward of choosing a step at random and carrying it out without a mistake.
    """
    rows: list[str] = []
    for level in range(height, -1, -1):
        label = f"{level / height:4.2f} " if level % 3 == 0 else " " * 5
        empty = "·" if level == round(blind * height) else " "
        rows.append(label + "│" + "".join("●" if round(value * height) == level else empty for value in curve))
    return "\n".join([*rows, " " * 5 + "└" + "─" * len(curve), f"      steps 1 to {len(curve)}; ·· is a blind choice"])


def picture(curve: Sequence[float], blind: float, *, held_out: tuple[float, float], path: Path) -> None:
    """Write the curve as a PNG, with the held-out reward before the first step and after the last. `blind` as in
    `chart`."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(range(1, len(curve) + 1), curve, marker="o", markersize=3, label="training batches")
    axes.plot([0, len(curve)], held_out, "s", label="held-out orders")
    axes.axhline(blind, linestyle=":", color="grey", label="a blind choice, perfectly carried out")
    axes.set(xlabel="GRPO step", ylabel="mean reward", ylim=(0, 1.02))
    axes.locator_params(axis="x", integer=True)
    axes.legend()
    figure.savefig(path, dpi=150)


def learning_curves(
    curves: Mapping[str, Sequence[float]], blind: float, *, control: Collection[str], path: Path
) -> None:
    """Write the curves of several runs as an SVG, the same bytes for the same curves; runs in `control` are grey.
    `blind` as in `chart`."""
    with matplotlib.rc_context({"svg.hashsalt": "demo", "svg.fonttype": "none"}):
        figure = Figure(figsize=(6.4, 3), layout="constrained")
        axes = figure.add_subplot()
        for name, curve in curves.items():
            style: dict[str, Any] = {"color": "grey", "linestyle": "--"} if name in control else {}
            axes.plot(range(1, len(curve) + 1), curve, linewidth=1.4, label=name, **style)
        axes.axhline(blind, linestyle=":", color="black", linewidth=1, label="a blind choice")
        axes.set(xlabel="GRPO step", ylabel="mean training reward", ylim=(0, 1.02))
        axes.locator_params(axis="x", integer=True)
        axes.legend(fontsize="small", ncols=2, loc="center right")
        figure.savefig(path, format="svg", metadata={"Date": None})
