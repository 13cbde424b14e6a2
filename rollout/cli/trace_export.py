"""`trace export`: recorded trajectories as training data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import anyio
import typer

from gateway.catalogue.tool_config import read_lock
from gateway.errors import ConfigError
from rollout.environment.config import Environment, load_environment
from rollout.environment.startup import opened
from rollout.trace.export import export_preferences, export_sft
from rollout.trace.store import read_traces

Schemas = dict[str, list[dict[str, Any]]]


def export_traces(
    directory: Path,
    output: Path,
    *,
    sft: bool,
    preferences: bool,
    min_reward: float,
    min_margin: float,
    tool_config: Path | None,
    environments_dir: Path,
    as_json: bool,
) -> int:
    """Exit status 1 where no trajectory was good enough to be exported."""
    if sft == preferences:
        raise ConfigError("say what to export as", key="--sft", remedy="add --sft or --preferences, one of them")
    if not directory.is_dir():
        raise ConfigError("no such directory", file=directory, remedy="name the directory of the traces")
    tools = schemas_of(directory, tool_config, environments_dir)
    if sft:
        exported = export_sft(read_traces(directory), output, tools=tools, min_reward=min_reward)
    else:
        exported = export_preferences(read_traces(directory), output, tools=tools, min_margin=min_margin)
    if as_json:
        typer.echo(json.dumps({"path": str(output), **asdict(exported)}))
    else:
        what = "conversations" if sft else "pairs"
        typer.echo(f"{output}: {exported.rows} {what}; {exported.left_out} trajectories left out")
    return int(exported.rows == 0)


def schemas_of(directory: Path, tool_config: Path | None, environments_dir: Path) -> Schemas:
    """Tool schemas by environment for all traces of a directory: the lock's, or else what the servers offer now."""
    names = sorted({trace.task.environment for trace in read_traces(directory)})
    if tool_config is not None:
        return _locked(names, tool_config)
    return anyio.run(_live, [load_environment(name, environments_dir) for name in names])


def _locked(names: Sequence[str], tool_config: Path) -> Schemas:
    entries = read_lock(tool_config)
    return {
        name: [entry.definition.openai_schema() for entry in entries if entry.environment in (name, None)]
        for name in names
    }


async def _live(environments: Sequence[Environment]) -> Schemas:
    """What the servers offer now; a lock says what they offered then."""
    tools: Schemas = {}
    for environment in environments:
        async with opened(environment, name=environment.name, source=environment.file) as gateway:
            async with gateway.lease(trajectory="export", task=None, seed=0) as session:
                tools[environment.name] = [tool.openai_schema() for tool in session.tools.values()]
    return tools
