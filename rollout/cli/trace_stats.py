"""`trace stats`: lengths, endings and rewards of recorded trajectories."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from gateway.errors import ConfigError
from rollout.cli.trace_export import schemas_of
from rollout.trace.export import offered_schemas
from rollout.trace.record import Trace
from rollout.trace.stats import Lengths, Stats, recorded_lengths, statistics_of
from rollout.trace.store import read_traces


def show_stats(
    directory: Path, *, tokenizer: str | None, tool_config: Path | None, environments_dir: Path, as_json: bool
) -> int:
    """Exit status 1 where there is no trajectory that was played to an end."""
    if not directory.is_dir():
        raise ConfigError("no such directory", file=directory, remedy="name the directory of the traces")
    played = (trace for trace in read_traces(directory) if not trace.is_withdrawn)
    if tokenizer is None:
        measured = ((trace, recorded_lengths(trace)) for trace in played)
    else:
        measured = _counted_as(tokenizer, played, directory, tool_config, environments_dir)
    stats = statistics_of(measured, withdrawn=sum(trace.is_withdrawn for trace in read_traces(directory)))
    if as_json:
        typer.echo(json.dumps(asdict(stats)))
    else:
        _show(stats, tokenizer)
    return int(stats.trajectories == 0)


def _counted_as(
    tokenizer: str, played: Iterator[Trace], directory: Path, tool_config: Path | None, environments_dir: Path
) -> Iterator[tuple[Trace, Lengths]]:
    try:
        from rollout.tokens.counting import trajectory_lengths
        from rollout.tokens.verl_builder import load_tokens
    except ImportError as error:
        problem = f"counting as a model does needs {error.name}, which is not installed"
        raise ConfigError(problem, key="--tokenizer", remedy="pip install 'mcp-rollout[verl]'") from error
    tokens = load_tokens(tokenizer, key="--tokenizer")
    tools = schemas_of(directory, tool_config, environments_dir)
    for trace in played:
        yield trace, trajectory_lengths(tokens, trace, offered_schemas(trace, tools))


def _show(stats: Stats, tokenizer: str | None) -> None:
    console = Console()
    table = Table("", "mean", "median", "95%", "longest", title=f"{stats.trajectories} trajectories")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, seen in stats.distributions.items():
        table.add_row(name.replace("_", " "), *(f"{number:.4g}" for number in asdict(seen).values()))
    console.print(table)
    reward = "none" if stats.reward is None else f"{stats.reward:.3f}"
    endings = ", ".join(f"{reason} {count}" for reason, count in stats.stop_reasons.items())
    console.print(f"reward {reward}, tool errors {stats.tool_error_rate:.1%}, ended by {endings}")
    if stats.marked_turns:
        console.print("marked turns: " + ", ".join(f"{kind} {count}" for kind, count in stats.marked_turns.items()))
    if stats.drift_example:
        problem = f"environment drift: {stats.drifted_calls} calls got different results in sibling trajectories"
        console.print(f"{problem}; for one, {stats.drift_example}", highlight=False, markup=False)
    if stats.withdrawn:
        console.print(f"{stats.withdrawn} withdrawn trajectories are left out")
    if stats.recommended is None:
        return
    counted = "as recorded" if tokenizer is None else f"under {tokenizer}"
    console.print(f"\nTo allow for such trajectories, in tokens {counted}:")
    console.print(f"  data.max_prompt_length={stats.recommended.max_prompt_length}")
    console.print(f"  data.max_response_length={stats.recommended.max_response_length}")
    console.print(f"  actor_rollout_ref.rollout.custom.mcp.tokens_per_turn={stats.recommended.tokens_per_turn}")
