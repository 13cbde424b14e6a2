"""A learning curve in characters and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

BLIND = 1 / 3
"""What a blind choice among three steps earns, perfectly carried out."""


def chart(curve: Sequence[float], height: int = 12) -> str:
    """A column a step, from 0 to 1."""
    rows: list[str] = []
    for level in range(height, -1, -1):
        label = f"{level / height:4.2f} " if level % 3 == 0 else " " * 5
        empty = "·" if level == round(BLIND * height) else " "
        rows.append(label + "│" + "".join("●" if round(value * height) == level else empty for value in curve))
    return "\n".join([*rows, " " * 5 + "└" + "─" * len(curve), f"      steps 1 to {len(curve)}; ·· is a blind choice"])


def picture(curve: Sequence[float], *, held_out: tuple[float, float], path: Path) -> None:
    """The same as a PNG, with the held-out reward before the first step and after the last."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(range(1, len(curve) + 1), curve, marker="o", markersize=3, label="training batches")
    axes.plot([0, len(curve)], held_out, "s", label="held-out orders")
    axes.axhline(BLIND, linestyle=":", color="grey", label="a blind choice, perfectly carried out")
    axes.set(xlabel="GRPO step", ylabel="mean reward", ylim=(0, 1.02))
    axes.locator_params(axis="x", integer=True)
    axes.legend()
    figure.savefig(path, dpi=150)
