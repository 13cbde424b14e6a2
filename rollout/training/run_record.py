"""The run record of a training or an evaluation, made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.catalogue.names import policy_tools
from gateway.gateway import Gateway
from rollout.environment.config import Environment
from rollout.trace.run_record import (
    RunRecord,
    TokenIds,
    environment_identity,
    file_digest,
    installed_versions,
    model_identity,
    server_identities,
    source_commit,
    tool_digests,
)


def run_record(
    environment: Environment,
    gateway: Gateway,
    tools: Mapping[str, dict[str, Any]] | None = None,
    *,
    kind: str = "training",
    engine: str,
    token_ids: TokenIds = TokenIds.MODEL,
    model: str | None,
    chat_template: str | None,
    sampling: Mapping[str, Any],
    settings: Mapping[str, Any],
    lock: str | None = None,
) -> RunRecord:
    """What the trajectories of an environment share. Reads files and asks git: not for an event loop.

    Args:
        environment: with the trainer's overrides.
        tools: schemas from the lock; None without one.
        engine: the engine's or the trainer's name.
        model: its directory; None where nothing names one.
        chat_template: a template that replaces the model's own.
        sampling: settings of sampling and lengths.
        settings: further settings of the run.
        lock: the file of the lock.
    """
    live = {tool.exposed_name: tool.openai_schema() for tool in policy_tools(gateway.catalogue)}
    return RunRecord(
        kind=kind,
        environment=environment_identity(environment),
        tools=list((live if tools is None else tools).values()),
        tool_digests=tool_digests(gateway.catalogue),
        servers=server_identities(gateway),
        engine=engine,
        token_ids=token_ids,
        sampling=dict(sampling),
        model=model_identity(model) | {"custom_chat_template": chat_template} if model else {},
        lock={"file": lock, "sha256": file_digest(lock)} if lock else None,
        settings=dict(settings),
        versions=installed_versions(),
        commit=source_commit(),
    )
