"""`trace export`: recorded trajectories as training data or as columns."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from mcp_rollout.gateway.errors import ConfigError, not_written
from mcp_rollout.gateway.private_files import make_private
from mcp_rollout.rollout.cli.options import (
    AsJson,
    TraceDirectory,
    Where,
    print_result,
)
from mcp_rollout.rollout.extras import parquet_needed
from mcp_rollout.rollout.trace.export import export_sft, ids_path
from mcp_rollout.rollout.trace.reader import Traces
from mcp_rollout.rollout.trace.run_record import TokenIds, read_run_records


def export(
    directory: TraceDirectory,
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write: JSON lines, or Parquet.")],
    sft: Annotated[bool, typer.Option("--sft", help="As conversations for supervised training.")] = False,
    parquet: Annotated[
        bool, typer.Option("--parquet", help="As columns for DuckDB, pandas, polars or datasets, see docs/traces.md.")
    ] = False,
    where: Where = None,
    min_reward: Annotated[float, typer.Option(help="With --sft: leave out trajectories that scored less.")] = 1.0,
    ids: Annotated[bool, typer.Option("--ids", help="With --sft: conversations as ids and loss mask, too.")] = False,
    as_json: AsJson = False,
) -> int:
    """Write trajectories: those worth imitating, or all as columns. Exit status 1 where there is none."""
    if sft == parquet:
        raise ConfigError("say what to export as", key="--sft", remedy="add --sft or --parquet")
    with Traces(directory) as traces:
        if parquet:
            return _export_columns(traces, where, output, as_json=as_json)
        records = read_run_records(directory)
        tools = {name: record.tools for name, record in records.items()}
        text_only = {name for name, record in records.items() if record.token_ids is TokenIds.BYTES}
        chosen = traces.traces(where=where)
        exported = export_sft(chosen, output, tools=tools, min_reward=min_reward, ids_only=ids, text_only=text_only)
    as_ids = f"; {ids_path(output)}: {exported.as_ids} trajectories as ids" if exported.as_ids else ""
    text = f"{output}: {exported.rows} conversations{as_ids}; {exported.left_out} trajectories left out"
    if exported.without_ids:
        text += (
            f", {exported.without_ids} of them because they are not plain conversations and have no model's token ids"
        )
    print_result({"path": str(output), **asdict(exported)}, text, as_json=as_json)
    return int(exported.rows + exported.as_ids == 0)


def _export_columns(traces: Traces, where: str | None, output: Path, *, as_json: bool) -> int:
    with parquet_needed(str(output)):
        from mcp_rollout.rollout.trace.columns import write_columns
    try:
        make_private(output.parent)
        rows = write_columns(output, traces.traces(where=where))
    except OSError as error:
        raise not_written(error, output, "-o") from error
    print_result({"path": str(output), "rows": rows}, f"{output}: {rows} trajectories", as_json=as_json)
    return int(rows == 0)
