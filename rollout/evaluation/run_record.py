"""The run record of an evaluation."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from gateway.catalogue.names import policy_tools
from gateway.gateway import Gateway
from rollout.engines.engine import Engine, EngineOptions
from rollout.environment.config import Environment
from rollout.evaluation.resume import Settings
from rollout.trace.run_record import (
    RunRecord,
    environment_identity,
    installed_versions,
    model_identity,
    server_identities,
    source_commit,
    tool_digests,
)


def evaluation_record(
    environment: Environment, gateway: Gateway, options: EngineOptions, engine: Engine, settings: Settings
) -> RunRecord:
    """What the trajectories of an environment share. Reads files and asks git: not for an event loop."""
    model = options.engine if Path(options.engine).is_dir() else options.tokenizer
    return RunRecord(
        kind="evaluation",
        environment=environment_identity(environment),
        tools=[tool.openai_schema() for tool in policy_tools(gateway.catalogue)],
        tool_digests=tool_digests(gateway.catalogue),
        servers=server_identities(gateway),
        engine=engine.name,
        token_ids=engine.token_ids,
        sampling=asdict(options.sampling),
        model=model_identity(model) if model else {},
        settings=dict(settings),
        versions=installed_versions(),
        commit=source_commit(),
    )
