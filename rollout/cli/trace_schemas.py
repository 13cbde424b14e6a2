"""The tool schemas of recorded trajectories: from their run records, else from a lock or the servers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio

from gateway.catalogue.tool_config import read_lock
from rollout.environment.config import Environment, load_environment
from rollout.trace.reader import Traces
from rollout.trace.run_record import read_run_records

Schemas = dict[str, list[dict[str, Any]]]
"""Tool schemas by run record, or by environment."""


def recorded_schemas(traces: Traces, tool_config: Path | None, environments_dir: Path | None) -> Schemas:
    """The schemas of the tools of a directory's traces: the lock's if one is named, else those of their run records.

    For traces without a run record the servers are asked.
    """
    records = read_run_records(traces.directory) if tool_config is None else {}
    recorded: Schemas = {name: record.tools for name, record in records.items()}
    needed = {(entry["environment"], entry["run"]) for entry in traces.entries(columns=["environment", "run"])}
    names = sorted({environment for environment, run in needed if run not in recorded})
    if tool_config is None:
        return recorded | anyio.run(_offered_now, [load_environment(name, environments_dir) for name in names])
    entries = read_lock(tool_config)
    return recorded | {
        name: [entry.definition.openai_schema() for entry in entries if entry.environment in (name, None)]
        for name in names
    }


async def _offered_now(environments: Sequence[Environment]) -> Schemas:
    # Only here: what connects to servers takes longer to import than a command that reads traces takes.
    from rollout.environment.startup import opened_environment

    tools: Schemas = {}
    for environment in environments:
        async with opened_environment(environment) as gateway:
            async with gateway.lease(trajectory="export", task=None, seed=0) as session:
                tools[environment.name] = [tool.openai_schema() for tool in session.tools.values()]
    return tools
