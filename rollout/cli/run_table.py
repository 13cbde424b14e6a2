"""What a run came to, for people: a table with a column for each environment."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from rollout.evaluation.estimates import Estimate
from rollout.evaluation.summary import Summary


def print_summaries(title: str, columns: Mapping[str, Summary], console: Console) -> None:
    """Labels are whole on any terminal; numbers are folded where they do not fit, and in a file nothing is."""
    table = Table("", *columns, title=title)
    table.columns[0].no_wrap = True
    for column in table.columns[1:]:
        column.justify, column.overflow = "right", "fold"
    rows = {name: _cells(summary) for name, summary in columns.items()}
    # By block, since each environment has parts and endings of its own.
    labels = sorted({block_and_label: None for cells in rows.values() for block_and_label in cells}, key=_block)
    for at in labels:
        table.add_row(at[1], *(cells.get(at, "") for cells in rows.values()))
    if not console.is_terminal:
        # Lines of a file are as long as they are.
        console.width = max(console.width, console.measure(table, options=console.options.update(width=1000)).maximum)
    console.print(table)


_Labelled = tuple[int, str]
"""A row of the table: the block that it stands in, and its label."""


def _block(at: _Labelled) -> int:
    return at[0]


def _cells(summary: Summary) -> dict[_Labelled, str]:
    resumed = f" ({summary.resumed} from before)" if summary.resumed else ""
    blocks = [
        {
            "trajectories": f"{summary.trajectories}{resumed}",
            "failed": str(summary.failed),
            "reward": _number(summary.reward_mean),
        },
        {f"  {part}": _number(value) for part, value in summary.reward_parts.items()},
        {f"pass@{k}": _interval(made) for k, made in summary.pass_at_k.items()},
        {f"pass^{k}": _interval(made) for k, made in summary.pass_hat_k.items() if k > 1},
        {
            "turns": _number(summary.turns_mean),
            "tool errors": f"{summary.tool_error_rate:.1%} of {summary.tool_calls}",
        },
        {f"ended: {reason}": str(count) for reason, count in summary.stop_reasons.items()},
    ]
    return {(number, label): text for number, block in enumerate(blocks) for label, text in block.items()}


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"


def _interval(made: Estimate) -> str:
    return f"{made.value:.3f} [{made.low:.3f}, {made.high:.3f}]"
