"""`trace stats`: lengths, endings and rewards of recorded trajectories."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

import typer
from rich.table import Table

from mcp_rollout.rollout.cli.options import (
    AsJson,
    TraceDirectory,
    Where,
    none_found,
    print_json,
)
from mcp_rollout.rollout.cli.output import Console
from mcp_rollout.rollout.trace.reader import Traces
from mcp_rollout.rollout.trace.run_record import TokenIds, read_run_records
from mcp_rollout.rollout.trace.stats import Stats, statistics_of


def stats(
    directory: TraceDirectory,
    where: Where = None,
    as_json: AsJson = False,
) -> int:
    """How long trajectories are, how they end, and which lengths a training run should allow for.

    Exit status 1 where no trajectory was played to an end.
    """
    with Traces(directory) as traces:
        found = statistics_of(traces.entries(where=where))
    if not found.trajectories and not found.withdrawn and not as_json:
        typer.echo(none_found(directory, where), err=True)
        return 1
    if as_json:
        print_json(asdict(found))
    else:
        records = read_run_records(directory).values()
        bytes_only = bool(records) and all(record.token_ids is TokenIds.BYTES for record in records)
        _print_stats(found, bytes_only=bytes_only)
    return int(found.trajectories == 0)


def _print_stats(found: Stats, *, bytes_only: bool) -> None:
    console = Console()
    table = Table("", "mean", "median", "95%", "longest", title=f"{found.trajectories} trajectories")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, distribution in found.distributions.items():
        numbers: Iterable[float] = asdict(distribution).values()
        table.add_row(name.replace("_", " "), *(f"{each:,.0f}" if each >= 1000 else f"{each:.4g}" for each in numbers))
    console.print(table)
    reward = "none" if found.reward is None else f"{found.reward:.3f}"
    endings = ", ".join(f"{reason} {count}" for reason, count in found.stop_reasons.items())
    console.print(f"reward {reward}, tool errors {found.tool_error_rate:.1%}, ended by {endings}")
    if found.held_out:
        console.print(
            "held-out reward: " + ", ".join(f"{mean:.3f} in step {step}" for step, mean in found.held_out.items())
        )
    if found.marked_turns:
        console.print("marked turns: " + ", ".join(f"{kind} {count}" for kind, count in found.marked_turns.items()))
    if found.withdrawn:
        console.print(f"{found.withdrawn} withdrawn trajectories are left out")
    if found.recommended is None:
        return
    if bytes_only:
        console.print("lengths are in bytes of text: a run with the model itself counts its tokens")
        return
    console.print("\nTo allow for such trajectories, in tokens:")
    console.print(f"  data.max_prompt_length={found.recommended.max_prompt_length}")
    console.print(f"  data.max_response_length={found.recommended.max_response_length}")
    own = "++actor_rollout_ref.rollout.custom.mcp.environment.limits.tokens_per_turn"
    console.print(f"  {own}={found.recommended.tokens_per_turn}")
