"""Preflight checks of environments, locks and rows, shared by all commands."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from gateway.catalogue.tool_config import LockEntry, check_lock
from gateway.errors import ConfigError, LockMismatch
from gateway.gateway import Gateway
from gateway.leases.session import Session
from gateway.types import Role
from rollout.environment.config import Environment
from rollout.environment.reward_config import Component
from rollout.environment.task import Task

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


def unnumbered(indices: Sequence[object]) -> list[int]:
    """Rows whose `extra_info.index` is missing or taken: traces and sampling seeds cannot tell them from other rows.

    Args:
        indices: `extra_info.index` of the rows of one file, in order.
    """
    seen: set[object] = {None}
    found: list[int] = []
    for row, index in enumerate(indices):
        if index in seen:
            found.append(row)
        seen.add(index)
    return found


def row_faults(task: Task, environment: Environment, tools: Collection[str], *, where: str) -> list[ConfigError]:
    """Validate a row against its environment; the keys of the errors are the row's columns.

    Args:
        tools: exposed names of the environment's tools.
        where: file and row.
    """
    faults: list[ConfigError] = []
    if task.prompt[-1]["role"] != "user" and environment.user is None:
        faults.append(
            ConfigError(
                "the prompt does not end in a user message, and the environment has no user to give one",
                file=where,
                key="prompt",
                remedy="end it in one, or name a `user` in the environment",
            )
        )
    if Component.EXACT_MATCH in environment.reward.computed and not task.answer:
        faults.append(
            ConfigError(
                f"the reward of {environment.name} weighs exact_match, and the row has no ground truth",
                file=where,
                key="reward_model.ground_truth",
                remedy="let `tasks` give each task its `answer`",
            )
        )
    if missing := [tool for tool in task.tools or () if tool not in tools]:
        faults.append(
            ConfigError(
                f"unknown tools {missing}",
                file=where,
                key="extra_info.mcp.tools",
                remedy=f"tools of {environment.name}: {', '.join(sorted(tools))}",
            )
        )
    return faults


def locked_tools(
    name: str, lock: Sequence[LockEntry], gateway: Gateway, *, path: str | None
) -> dict[str, dict[str, Any]] | None:
    """The lock's schemas for one environment by exposed name, or None without a lock.

    Args:
        name: the environment.
        lock: all entries of the lock.
        gateway: the running servers, whose definitions must match the lock.
        path: the file of the lock.

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
    """Raises LockMismatch where the live definitions differ from `entries`, a part of the `lock` at `path`."""
    if differences := check_lock(entries, gateway.catalogue):
        sources = " ".join(dict.fromkeys(entry.source for entry in lock))
        raise LockMismatch(
            "the live tool definitions differ from the lock:\n" + "\n".join(differences) + "\n",
            key=LOCK_KEY,
            remedy=f"review it and accept it with `mcp-rollout tool-config {sources} -o {path} --accept`",
        )


def selected(tools: Sequence[dict[str, Any]], task: Task) -> list[dict[str, Any]]:
    """The schemas of the tools that the row selects."""
    return [tool for tool in tools if task.tools is None or tool["function"]["name"] in task.tools]
