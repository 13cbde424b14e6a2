"""The report of a run: a record for programs, or a table with a column for each environment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.table import Table

from mcp_rollout.rollout.cli.options import print_json
from mcp_rollout.rollout.cli.output import Console
from mcp_rollout.rollout.engines.rehearsal import IdleWorlds
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.sections import Strategy
from mcp_rollout.rollout.evaluation.estimates import Estimate
from mcp_rollout.rollout.evaluation.summary import Outcome, Summary, summarise

_FAILURES, _ROWS = 20, 10
"""The most kinds of failures, and rows, that are named."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    """The trajectories of a run that has ended."""

    engine: str
    notes: Sequence[str]
    outcomes: Sequence[Outcome]
    resumed: frozenset[str]
    """Ids of trajectories that earlier runs played."""
    seconds: float
    """How long the other trajectories took together."""
    counts_bytes: bool
    """Whether the engine gives text only, so that lengths are bytes."""
    idle: Mapping[str, IdleWorlds] = field(default_factory=dict[str, IdleWorlds])
    """By environment, the rows whose checks pay without a turn."""

    @property
    def sampled(self) -> int:
        """Tokens that this run sampled, those that leaves of a tree share once."""
        own = [outcome for outcome in self.outcomes if outcome.trace not in self.resumed]
        return sum(outcome.sampled_tokens for outcome in own)

    @property
    def per_second(self) -> float:
        return self.sampled / self.seconds if self.seconds else 0.0


def print_report(
    played: Played,
    environments: Iterable[Environment],
    *,
    out: Path,
    split: str,
    samples: int,
    success_at: float,
    as_json: bool,
) -> Summary:
    """Print the summaries, and return that of all environments together."""

    def summary(outcomes: Sequence[Outcome], parts: Sequence[str] = ()) -> Summary:
        resumed = sum(outcome.trace in played.resumed for outcome in outcomes)
        return summarise(outcomes, resumed=resumed, samples=samples, success_at=success_at, parts=parts)

    total = summary(played.outcomes)
    each = {
        environment.name: summary(
            [outcome for outcome in played.outcomes if outcome.key.environment == environment.name],
            environment.reward.reported,
        )
        for environment in environments
    }
    if as_json:
        head = {"engine": played.engine, "split": split, "notes": list(played.notes), "out": str(out)}
        unit = "bytes" if played.counts_bytes else "tokens"
        head |= {"seconds": round(played.seconds, 6), f"{unit}_per_second": round(played.per_second, 1)}
        held = {name: {"of": each.checked, "rows": each.paid, "left": each.left} for name, each in played.idle.items()}
        head |= {"hold_before_any_turn": held}
        print_json(head | asdict(total) | {"environments": {name: asdict(found) for name, found in each.items()}})
        return total
    columns = each if len(each) == 1 else {**each, "all": total}
    console = Console()
    title = f"{played.engine}, {split}, {samples} per row; success is a reward of {success_at:g}"
    _print_table(title, columns, console)
    for name, found in columns.items():
        for failure, count in list(found.failures.items())[:_FAILURES]:
            console.print(f"{name}: {count} x {failure}")
        if (more := len(found.failures) - _FAILURES) > 0:
            console.print(f"{name}: and {more} more kinds of failure")
    for name, idle in played.idle.items():
        if idle.paid:
            rows = ", ".join(map(str, idle.paid[:_ROWS])) + (" and more" if len(idle.paid) > _ROWS else "")
            left = f"; not examined: {idle.left}" if idle.left else ""
            console.print(
                f"{name}: checks that hold before any turn: {len(idle.paid)} of {idle.checked}, rows {rows}{left}"
            )
    for note in played.notes:
        console.print(f"note: {note}")
    unit = "bytes of text" if played.counts_bytes else "tokens"
    rate = f"{played.sampled} {unit} sampled in {played.seconds:.1f} s, {played.per_second:.0f} per second"
    console.print(rate)
    console.print(f"traces in {out}")
    return total


def _print_table(title: str, columns: Mapping[str, Summary], console: Console) -> None:
    """Labels are never folded; numbers are folded on a terminal where they do not fit, and never in a file."""
    table = Table("", *columns, title=title)
    table.columns[0].no_wrap = True
    for column in table.columns[1:]:
        column.justify, column.overflow = "right", "fold"
    cells = {name: _cells(summary) for name, summary in columns.items()}
    # Sorted by block, since environments differ in their reward parts and stop reasons.
    rows = dict.fromkeys(row for column in cells.values() for row in column)
    for row in sorted(rows, key=lambda row: row[0]):
        table.add_row(row[1], *(column.get(row, "") for column in cells.values()))
    console.print_whole(table)


def _cells(summary: Summary) -> dict[tuple[int, str], str]:
    """Cells of a column by row, a row being its block of the table and its label."""
    resumed = f" ({summary.resumed} from before)" if summary.resumed else ""
    blocks = [
        {
            "trajectories": f"{summary.trajectories}{resumed}",
            "failed": str(summary.failed),
            **({"worlds lost": str(summary.worlds_lost)} if summary.worlds_lost else {}),
            "reward": _number(summary.reward_mean),
        },
        {f"  {part}": _number(value) for part, value in summary.reward_parts.items()},
        {f"pass@{k}": _interval(made) for k, made in summary.pass_at_k.items()},
        {f"pass^{k}": _interval(made) for k, made in summary.pass_hat_k.items() if k > 1},
        {
            **{f"strategy: {name}": str(count) for name, count in summary.strategies.items() if name != "chain"},
            **({"  branches": str(summary.branches)} if Strategy.TREE in summary.strategies else {}),
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
