"""`trace`: recorded trajectories listed, shown, counted and exported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import anyio
import typer
from rich.console import Console
from rich.table import Table

from gateway.catalogue.tool_config import read_lock
from gateway.errors import ConfigError
from rollout.cli.options import (
    AsJson,
    EnvironmentsDir,
    ToolConfig,
    TraceDirectory,
    plain_table,
    print_json,
    print_result,
)
from rollout.environment.config import Environment, load_environment
from rollout.environment.startup import opened_environment
from rollout.trace.export import Reproduces, export_preferences, export_sft, ids_path, offered_schemas
from rollout.trace.record import Trace
from rollout.trace.stats import Lengths, Stats, recorded_lengths, statistics_of
from rollout.trace.store import read_traces, to_json
from rollout.trace.view import render

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Read recorded trajectories.")

Schemas = dict[str, list[dict[str, Any]]]
"""Tool schemas by environment."""


@app.command()
def ls(directory: TraceDirectory, as_json: AsJson = False) -> int:
    """List trajectories, one line each; with --json one object per line.

    `row` is the dataset's row and which of its sibling trajectories this is; a `v` after the step means validation.
    """
    table = plain_table()
    for name in ("id", "environment", "task", "row", "step", "turns", "reward", "stop reason"):
        # Long names of tasks are folded, so that the other columns fit in 80 characters.
        table.add_column(name, overflow="fold", no_wrap=name not in ("environment", "task"))
    found = 0
    for trace in _read(directory):
        found += 1
        line = _summary(trace)
        if as_json:
            print_json(line)
            continue
        reward = "-" if line["reward"] is None else f"{line['reward']:.2f}"
        step = f"{line['step']}{'v' if line['validate'] else ''}"
        row = f"{line['row']}.{line['sample']}"
        cells = [trace.id[:8], line["environment"], line["task"], row, step, line["turns"]]
        table.add_row(*map(str, cells), reward, line["stop_reason"])
    if table.row_count:
        Console().print(table)
    if not found:
        typer.echo(f"{directory}: no traces here", err=True)
    return 0


@app.command()
def show(
    directory: TraceDirectory,
    trajectory: Annotated[str, typer.Argument(metavar="ID", help="The trajectory's id, or an unambiguous beginning.")],
    full: Annotated[bool, typer.Option("--full", help="Unfold thinking and long results.")] = False,
    as_json: AsJson = False,
) -> int:
    """Read one trajectory turn by turn, thinking folded."""
    found = [trace for trace in _read(directory) if trace.id.startswith(trajectory)]
    if len(found) != 1:
        problem = "no such trajectory" if not found else f"{len(found)} trajectories begin like this"
        raise ConfigError(problem, file=directory, key=trajectory, remedy="see `mcp-rollout trace ls`")
    if as_json:
        typer.echo(to_json(found[0]).decode())
    else:
        Console().print(render(found[0], full=full))
    return 0


@app.command()
def stats(
    directory: TraceDirectory,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Count as this model would (an expert's traces hold bytes).")
    ] = None,
    tool_config: ToolConfig = None,
    as_json: AsJson = False,
    environments_dir: EnvironmentsDir = None,
) -> int:
    """How long trajectories are, how they end, and which lengths a training run should allow for.

    Exit status 1 where no trajectory was played to an end.
    """
    played = (trace for trace in _read(directory) if not trace.is_withdrawn)
    if tokenizer is None:
        measured = ((trace, recorded_lengths(trace)) for trace in played)
    else:
        measured = _counted_as(tokenizer, played, _schemas(directory, tool_config, environments_dir))
    found = statistics_of(measured, withdrawn=sum(trace.is_withdrawn for trace in _read(directory)))
    if as_json:
        print_json(asdict(found))
    else:
        _print_stats(found, tokenizer)
    return int(found.trajectories == 0)


@app.command()
def export(
    directory: TraceDirectory,
    output: Annotated[Path, typer.Option("-o", "--output", help="The JSON lines file to write.")],
    sft: Annotated[bool, typer.Option("--sft", help="As conversations for supervised training.")] = False,
    preferences: Annotated[
        bool, typer.Option("--preferences", help="As pairs of a better and a worse trajectory of the same row.")
    ] = False,
    min_reward: Annotated[float, typer.Option(help="With --sft: leave out trajectories that scored less.")] = 1.0,
    min_margin: Annotated[
        float, typer.Option(help="With --preferences: by how much a pair's rewards differ at least.")
    ] = 0.5,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="With --sft: the model that sampled; trajectories that its template renders otherwise become ids.",
        ),
    ] = None,
    tool_config: ToolConfig = None,
    as_json: AsJson = False,
    environments_dir: EnvironmentsDir = None,
) -> int:
    """Write trajectories as training data: those worth imitating, or pairs. Exit status 1 where there is none."""
    if sft == preferences:
        raise ConfigError("say what to export as", key="--sft", remedy="add --sft or --preferences, one of them")
    tools = _schemas(directory, tool_config, environments_dir)
    if sft:
        check = {} if tokenizer is None else {"reproduces": _template_check(tokenizer)}
        exported = export_sft(_read(directory), output, tools=tools, min_reward=min_reward, **check)
    else:
        exported = export_preferences(_read(directory), output, tools=tools, min_margin=min_margin)
    kind = "conversations" if sft else "pairs"
    as_ids = f"; {ids_path(output)}: {exported.as_ids} trajectories as ids" if exported.as_ids else ""
    text = f"{output}: {exported.rows} {kind}{as_ids}; {exported.left_out} trajectories left out"
    print_result({"path": str(output), **asdict(exported)}, text, as_json=as_json)
    return int(exported.rows + exported.as_ids == 0)


def _template_check(model: str) -> Reproduces:
    try:
        from rollout.tokens.sft import template_check

        return template_check(model)
    except (ImportError, OSError, ValueError) as error:
        problem = f"cannot be checked with: {str(error).splitlines()[0]}"
        remedy = "name a model directory with its tokenizer, and install verl"
        raise ConfigError(problem, file=model, key="--tokenizer", remedy=remedy) from error


def _read(directory: Path) -> Iterator[Trace]:
    if not directory.is_dir():
        raise ConfigError("no such directory", file=directory, remedy="name the directory of the traces")
    return read_traces(directory)


def _summary(trace: Trace) -> dict[str, Any]:
    return {
        "id": trace.id,
        "environment": trace.task.environment,
        "task": trace.task.task,
        "seed": trace.task.seed,
        "row": trace.origin.row,
        "sample": trace.origin.sample,
        "step": trace.origin.step,
        "validate": trace.origin.validate_,
        "turns": len(trace.turns),
        "tool_calls": trace.tool_calls,
        "tool_errors": trace.tool_errors,
        "tokens": len(trace.prompt_ids) + len(trace.response_ids),
        "reward": trace.reward.score if trace.reward else None,
        "reward_parts": trace.reward.parts if trace.reward else {},
        "stop_reason": str(trace.stop_reason),
        "failure": f"{trace.failure.kind}: {trace.failure.message}" if trace.failure else None,
        "elapsed_s": trace.elapsed_s,
    }


def _counted_as(tokenizer: str, played: Iterator[Trace], tools: Schemas) -> Iterator[tuple[Trace, Lengths]]:
    """Measure trajectories in tokens of another model."""
    try:
        from rollout.tokens.counting import trajectory_lengths
        from rollout.tokens.verl_builder import load_tokens
    except ImportError as error:
        problem = f"counting as a model does needs {error.name}, which is not installed"
        raise ConfigError(problem, key="--tokenizer", remedy="pip install 'mcp-rollout[verl]'") from error
    tokens = load_tokens(tokenizer, key="--tokenizer")
    for trace in played:
        yield trace, trajectory_lengths(tokens, trace, offered_schemas(trace, tools))


def _print_stats(found: Stats, tokenizer: str | None) -> None:
    console = Console()
    table = Table("", "mean", "median", "95%", "longest", title=f"{found.trajectories} trajectories")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, distribution in found.distributions.items():
        table.add_row(name.replace("_", " "), *(f"{number:.4g}" for number in asdict(distribution).values()))
    console.print(table)
    reward = "none" if found.reward is None else f"{found.reward:.3f}"
    endings = ", ".join(f"{reason} {count}" for reason, count in found.stop_reasons.items())
    console.print(f"reward {reward}, tool errors {found.tool_error_rate:.1%}, ended by {endings}")
    if found.marked_turns:
        console.print("marked turns: " + ", ".join(f"{kind} {count}" for kind, count in found.marked_turns.items()))
    if found.drift_example:
        problem = f"environment drift: {found.drifted_calls} calls got different results in sibling trajectories"
        console.print(f"{problem}; for one, {found.drift_example}", highlight=False, markup=False)
    if found.withdrawn:
        console.print(f"{found.withdrawn} withdrawn trajectories are left out")
    if found.recommended is None:
        return
    counted = "as recorded" if tokenizer is None else f"under {tokenizer}"
    console.print(f"\nTo allow for such trajectories, in tokens {counted}:")
    console.print(f"  data.max_prompt_length={found.recommended.max_prompt_length}")
    console.print(f"  data.max_response_length={found.recommended.max_response_length}")
    console.print(f"  actor_rollout_ref.rollout.custom.mcp.tokens_per_turn={found.recommended.tokens_per_turn}")


def _schemas(directory: Path, tool_config: Path | None, environments_dir: Path | None) -> Schemas:
    """The tool schemas of all environments in a directory's traces: the lock's, else what the servers offer now."""
    names = sorted({trace.task.environment for trace in _read(directory)})
    if tool_config is None:
        return anyio.run(_offered_now, [load_environment(name, environments_dir) for name in names])
    entries = read_lock(tool_config)
    return {
        name: [entry.definition.openai_schema() for entry in entries if entry.environment in (name, None)]
        for name in names
    }


async def _offered_now(environments: Sequence[Environment]) -> Schemas:
    tools: Schemas = {}
    for environment in environments:
        async with opened_environment(environment) as gateway:
            async with gateway.lease(trajectory="export", task=None, seed=0) as session:
                tools[environment.name] = [tool.openai_schema() for tool in session.tools.values()]
    return tools
