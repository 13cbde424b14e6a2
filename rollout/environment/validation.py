"""Validation of a running environment: the roles of its servers, and the lock of its tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mcp_rollout.gateway.catalogue.tool_config import LockEntry, check_lock
from mcp_rollout.gateway.errors import ConfigError, LockMismatch
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.gateway.types import Role
from mcp_rollout.rollout.environment.config import Environment

LOCK_KEY = "actor_rollout_ref.rollout.multi_turn.tool_config_path"


def missing_roles(environment: Environment, session: Session) -> list[ConfigError]:
    """One error for each tool that the user, reward or elicitation server lacks for its role."""
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
    name: str, lock: Sequence[LockEntry], gateway: Gateway, *, path: str | None, key: str = LOCK_KEY
) -> dict[str, dict[str, Any]] | None:
    """The lock's schemas for one environment by exposed name, or None without a lock.

    Args:
        name: the environment.
        lock: all entries of the lock.
        gateway: the running servers, whose definitions must match the lock.
        path: the file of the lock.
        key: the trainer's key that names it, for errors.

    Raises:
        LockMismatch: a definition differs from the lock.
        ConfigError: the lock has no tools for this environment.
    """
    if not lock:
        return None
    entries = [entry for entry in lock if entry.environment in (name, None)]
    if not entries:
        raise ConfigError(f"has no tools of environment {name!r}", key=key, remedy="add them with tool-config")
    refuse_differences(entries, gateway, lock=lock, path=path, key=key)
    return {entry.definition.exposed_name: entry.definition.openai_schema() for entry in entries}


def refuse_differences(
    entries: Sequence[LockEntry], gateway: Gateway, *, lock: Sequence[LockEntry], path: str | None, key: str = LOCK_KEY
) -> None:
    """Raises LockMismatch where the live definitions differ from `entries`, a part of the `lock` at `path`."""
    if differences := check_lock(entries, gateway.catalogue):
        sources = " ".join(dict.fromkeys(entry.source for entry in lock))
        raise LockMismatch(
            "the live tool definitions differ from the lock:\n" + "\n".join(differences) + "\n",
            key=key,
            remedy=f"review it and accept it with `mcp-rollout tool-config {sources} -o {path} --accept`",
        )
