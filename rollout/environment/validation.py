"""Validation of a running environment: the roles of its servers, and the lock of its tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.catalogue.tool_config import LockEntry, check_lock
from gateway.errors import ConfigError, LockMismatch
from gateway.gateway import Gateway
from gateway.leases.session import Session
from gateway.types import Role
from rollout.environment.config import Environment
from rollout.environment.task import Task

LOCK_KEY = "actor_rollout_ref.rollout.multi_turn.tool_config_path"


def missing_roles(environment: Environment, session: Session) -> list[ConfigError]:
    """One for each tool that the servers lack which play the user and keep the score."""
    needed: list[tuple[str, str, Role]] = []
    if environment.user:
        needed += [("user.server", environment.user.server, role) for role in (Role.START, Role.REPLY)]
    if environment.reward.server:
        needed.append(("reward.server", environment.reward.server, Role.SCORE))
    if environment.elicitation:
        needed.append(("elicitation.server", environment.elicitation.server, Role.ELICIT))
    return [
        ConfigError(
            f"server {server!r} has no tool with the role {role}",
            file=environment.file,
            key=key,
            remedy=f"mark one with `_meta`, or name it under servers.{server}.roles",
        )
        for key, server, role in needed
        if not session.has(role, server)
    ]


def locked_tools(
    name: str, lock: Sequence[LockEntry], gateway: Gateway, *, path: str | None
) -> dict[str, dict[str, Any]] | None:
    """The lock's schemas for one environment, checked against the live definitions; `path` is where the lock is.

    Raises:
        LockMismatch: a definition differs from the lock.
        ConfigError: the lock has no tools for this environment.
    """
    if not lock:
        return None
    entries = [entry for entry in lock if entry.environment in (name, None)]
    if not entries:
        raise ConfigError(f"has no tools of environment {name!r}", key=LOCK_KEY, remedy="add them with tool-config")
    refuse_differences(entries, gateway, lock=lock, path=path)
    return {entry.definition.exposed_name: entry.definition.openai_schema() for entry in entries}


def refuse_differences(
    entries: Sequence[LockEntry], gateway: Gateway, *, lock: Sequence[LockEntry], path: str | None
) -> None:
    """Raises LockMismatch where the live definitions differ from `entries`, a part of `lock`, which lies at `path`."""
    if differences := check_lock(entries, gateway.catalogue):
        sources = " ".join(dict.fromkeys(entry.source for entry in lock))
        raise LockMismatch(
            "the live tool definitions differ from the lock:\n" + "\n".join(differences) + "\n",
            key=LOCK_KEY,
            remedy=f"review it and accept it with `mcp-rollout tool-config {sources} -o {path} --accept`",
        )


def selected(tools: Sequence[dict[str, Any]], task: Task) -> list[dict[str, Any]]:
    """The schemas that the row's prompt carries."""
    return [tool for tool in tools if task.tools is None or tool["function"]["name"] in task.tools]
