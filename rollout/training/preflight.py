"""Validation that every trainer needs before a run: environments with their rows and lock, prompts, chat template."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import structlog

from mcp_rollout.gateway.cassette.replaying import Replay
from mcp_rollout.gateway.catalogue.tool_config import read_lock
from mcp_rollout.gateway.errors import ConfigError, Faults, raise_all
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.rollout.engines.rehearsal import idle_worlds, rehearse
from mcp_rollout.rollout.engines.scripted import ScriptedPolicy
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.row_validation import (
    Row,
    environment_problem,
    environment_problems,
    prompt_lengths,
)
from mcp_rollout.rollout.environment.startup import opened_environment
from mcp_rollout.rollout.environment.task import Origin
from mcp_rollout.rollout.loop.agent import build_agent
from mcp_rollout.rollout.loop.compaction import check_opening
from mcp_rollout.rollout.loop.reward import check_reward, check_rewarded
from mcp_rollout.rollout.shards.hosts import hosts_of
from mcp_rollout.rollout.tokens.chatml import IM_END, ByteTokens
from mcp_rollout.rollout.tokens.counting import prompt_length
from mcp_rollout.rollout.tokens.template_check import check_template, formats_shown
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.training.environments import Lock
from mcp_rollout.rollout.training.settings import TrainingSettings
from mcp_rollout.rollout.types import ModelTokens, Policy

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Shown:
    """The parts of an environment that its prompts are rendered with."""

    environment: Environment
    """With the trainer's overrides."""
    schemas: list[dict[str, Any]]
    """OpenAI-style schemas of the policy's tools."""


def load_lock(path: str | None, *, key: str) -> Lock:
    """Read the lock at `path`, which `key` names; without a path it has no entries.

    Raises:
        ConfigError: there is no such file, or it is not a lock.
    """
    if path and not Path(path).is_file():
        remedy = "write it with `mcp-rollout tool-config`, or leave it out"
        raise ConfigError(f"no such file: {path}", key=key, remedy=remedy)
    return Lock(path=path, entries=read_lock(path) if path else [], key=key)


async def check_environments(
    rows: Sequence[Row], settings: TrainingSettings, lock: Lock, *, workers_per_node: int
) -> dict[str, Shown]:
    """Start each environment of the rows once, validate it with its rows, and play its first row.

    Returns:
        By name, what the prompts are rendered with.

    Raises:
        ConfigError: the problems of all environments.
        GatewayError: a required server does not start.
    """
    faults = Faults()
    shown: dict[str, Shown] = {}
    for name in sorted({row.task.environment for row in rows}):
        own = [row for row in rows if row.task.environment == name]
        with faults.collected():
            environment = _loaded(own[0], settings, workers_per_node)
            faults.check(check_rewarded, environment)
            schemas = await _check_environment(environment, own, settings.opened_replay(), lock)
            shown[name] = Shown(environment, schemas)
    raise_all(faults)
    return shown


def _loaded(row: Row, settings: TrainingSettings, workers_per_node: int) -> Environment:
    try:
        environment = settings.load(row.task.environment, workers_per_node=workers_per_node)
        faults = Faults()
        for check in (build_agent, check_reward):
            faults.check(check, environment)
        raise_all(faults)
    except ConfigError as error:
        raise environment_problem(row, error) from error
    return environment


async def _check_environment(
    environment: Environment, rows: Sequence[Row], replay: Replay | None, lock: Lock
) -> list[dict[str, Any]]:
    """Validate a running environment with its rows, and play the first; returns the schemas that prompts show."""
    # Ray has not started yet, so worlds that shards will hold are tried here.
    hosts = None if environment.hosts is None or environment.hosts.ray else hosts_of(environment)
    async with opened_environment(environment, replay=replay, hosts=hosts) as gateway:
        problems, schemas = await environment_problems(
            environment, gateway, rows, lock.entries, lock_path=lock.path, lock_key=lock.key
        )
        raise_all(problems)
        # A replay has the answers of the recorded trajectories only, and this one was not among them.
        if replay is None:
            await check_world(environment, gateway, rows[0])
            await _warn_of_idle_rewards(environment, gateway, rows)
    return schemas


async def _warn_of_idle_rewards(environment: Environment, gateway: Gateway, rows: Sequence[Row]) -> None:
    """Log the rows whose checks all hold before any turn and pay for that, of those examined in time."""
    idle = await idle_worlds(environment, gateway, [row.task for row in rows])
    if idle.paid:
        first = f"{rows[idle.paid[0]].path}: row {rows[idle.paid[0]].number}"
        log.warning("checks hold before any turn", rows=len(idle.paid), of=idle.checked, left=idle.left, first=first)


def longest_prompt(
    tokens: ModelTokens, rows: Iterable[Row], shown: Mapping[str, Shown], *, limit: int
) -> tuple[int, Row]:
    """The number of tokens of the longest prompt with its tools, and its row.

    Raises:
        ConfigError: prompts exceed `limit`, or leave no room for a summary, or the chat template refuses them.
    """
    rows = list(rows)
    faults = Faults()
    lengths: list[tuple[int, Row]] = []
    for name, environment in shown.items():
        own = [row for row in rows if row.task.environment == name]
        found, problems = prompt_lengths(own, environment.schemas, partial(prompt_length, tokens), limit=limit)
        faults += problems
        lengths += found
        if found:
            most, row = max(found, key=itemgetter(0))
            faults.check(check_opening, environment.environment, most, row=f"{row.path}: row {row.number}")
    raise_all(faults)
    return max(lengths, key=itemgetter(0))


def check_turns(
    tokens: ModelTokens,
    rows: Sequence[Row],
    shown: Mapping[str, Shown],
    *,
    key: str,
    tool_format: str,
    format_key: str,
) -> None:
    """Validate that the template renders tools, and the messages after a prompt, on the first row of each environment.

    Args:
        key: where the trainer's configuration names a template, for errors.
        tool_format: that calls are read by.
        format_key: where the trainer's configuration names it.

    Raises:
        ConfigError: as `check_template`, or the template writes calls in another format than `tool_format`.
    """
    faults = Faults()
    # Reversed, so that the first row of each environment is the one that is left.
    for row in {row.task.environment: row for row in reversed(rows)}.values():
        own = shown[row.task.environment]
        has_user = own.environment.has_user_messages
        try:
            check_template(tokens, row.task.prompt, row.task.shown(own.schemas), has_user=has_user, key=key)
        except ConfigError as error:
            faults.append(row.problem(error.problem, key=error.key or "prompt", remedy=error.remedy))
    offered = next((own.schemas for own in shown.values() if own.schemas), list[dict[str, Any]]())
    written = formats_shown(lambda messages: tokens.decode(tokens.prompt(messages, offered)), offered)
    if written and tool_format not in written:
        problem = f"is {tool_format}, and the model's chat template writes calls as {' or '.join(written)}"
        faults.append(ConfigError(problem, key=format_key, remedy=f"make it {written[0]}"))
    raise_all(faults)


async def check_world(environment: Environment, gateway: Gateway, row: Row) -> None:
    """Play a row with one empty turn, and score it.

    Raises:
        ConfigError: the trajectory failed: the servers cannot be reset to the task, a `score` raises, a part of it is
            missing, a reward function is broken, ...
    """
    trace = Trace.begin("preflight", row.task, Origin(engine="none"))
    # One turn is enough, and a user that a model plays costs one message.
    one_turn = environment.model_copy(update={"limits": environment.limits.model_copy(update={"assistant_turns": 1})})

    async def does_nothing(session: Session) -> Policy:
        return ScriptedPolicy([], ByteTokens().encode, stop=IM_END)

    await rehearse(trace, environment=one_turn, gateway=gateway, policy_for=does_nothing)
    if trace.failure is not None:
        problem = f"a trajectory of {environment.name} that does nothing fails: {trace.failure.message}"
        raise row.problem(problem, key="extra_info.mcp", remedy=f"mcp-rollout check-env {environment.name}")
