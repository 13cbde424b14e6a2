"""Validation of a run's configuration, rows and environments, before Ray starts or a GPU is taken.

Hydra calls `PreflightCallback` with the composed configuration (`hydra.callbacks` in configs/mcp_grpo.yaml).
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from gateway.catalogue.tool_config import LockEntry, read_lock
from gateway.errors import ConfigError, GatewayError
from rollout.environment.config import load_environment
from rollout.environment.parquet import read_rows
from rollout.environment.startup import opened
from rollout.environment.task import Task
from rollout.environment.validation import (
    LOCK_KEY,
    locked_tools,
    missing_roles,
    refuse_differences,
    row_faults,
    selected,
    unnumbered,
)
from rollout.trace.store import TraceStore
from rollout.verl.settings import Settings, check_model_length, check_thinking, context_tokens
from rollout.verl.tool_agent_sessions import gateway_config

if TYPE_CHECKING:
    from rollout.tokens.verl_builder import ContinuousTokens

log = structlog.get_logger(__name__)

AGENT, STOCK_AGENT = "mcp_agent", "tool_agent"


class PreflightCallback(Callback):
    """Stops the program with one message and exit status 2 if the run cannot work."""

    def on_job_start(self, config: DictConfig, **_: Any) -> None:
        try:
            asyncio.run(preflight(config))
        except (ConfigError, GatewayError) as error:
            sys.stderr.write(f"error: {error}\n")
            raise SystemExit(2) from error
        except Exception as error:  # Hydra logs any other exception as a warning and starts the run
            traceback.print_exc()
            raise SystemExit(1) from error


@dataclass(frozen=True, slots=True)
class Row:
    """A parsed row of `mcp_agent`."""

    task: Task
    where: str
    """File and row number, for messages."""
    index: int | None
    """`extra_info.index`, which identifies the row in traces and seeds its sampling."""


@dataclass(frozen=True, slots=True)
class Lock:
    """`tool_config_path` and our entries in that file; None and no entries if it is not configured."""

    path: str | None
    entries: Sequence[LockEntry]


@dataclass(frozen=True, slots=True)
class Shown:
    """The parts of an environment that its prompts are rendered with."""

    schemas: list[dict[str, Any]]
    """OpenAI-style schemas of the policy's tools."""
    has_user: bool
    """Whether it has a user simulator."""


async def preflight(config: DictConfig) -> None:
    """Validate settings, rows, environments, lock and lengths, and the chat template's rendering of later turns.

    Raises:
        ConfigError: the first problem found, with file, key and remedy.
        GatewayError: a required server does not start.
    """
    settings = Settings.of(config)
    _check_given(config)
    TraceStore(settings.trace_dir).check()
    rows: list[Row] = []
    for path in _files(config):
        own = list(_rows(config, path))
        _warn_of_unnumbered(path, own)
        rows += own
    lock = _lock(config)
    names = sorted({row.task.environment for row in rows})
    shown = {name: await _check_environment(name, config, settings, lock, rows) for name in names}
    if any(_has_stock_rows(config, path) for path in _files(config)):
        await _check_stock_lock(lock, checked=names)
    if rows:
        tokens = _tokens(config)
        check_model_length(config)
        _check_prompts(config, tokens, rows, shown)
        _check_turns(tokens, rows, shown)


def _check_given(config: DictConfig) -> None:
    """Validate that keys without a default are given, and that the CPU engine has its platform."""
    for key, remedy in {
        "data.train_files": "name a file that `mcp-rollout data` wrote",
        "actor_rollout_ref.model.path": "name a model directory",
    }.items():
        if not OmegaConf.select(config, key):
            raise ConfigError("is not given", key=key, remedy=remedy)
    if config.trainer.device == "cpu" and os.environ.get("VERL_PLATFORM") != "cpu":
        raise ConfigError(
            "the CPU engine needs verl's CPU platform", key="engine", remedy="set VERL_PLATFORM=cpu in the environment"
        )


def _files(config: DictConfig) -> list[Path]:
    """The parquet files of `data.train_files` and `data.val_files`, without duplicates."""
    names: list[str] = []
    for key in ("data.train_files", "data.val_files"):
        files = OmegaConf.select(config, key)
        names += [files] if isinstance(files, str) else map(str, files or [])
    paths = [Path(name).expanduser() for name in dict.fromkeys(names)]
    return [path for path in paths if path.suffix not in (".json", ".jsonl")]


def _rows(config: DictConfig, path: Path) -> Iterable[Row]:
    """Our rows of one file; rows of other agents are verl's business."""
    default = OmegaConf.select(config, "actor_rollout_ref.rollout.agent.default_agent_loop")
    key = OmegaConf.select(config, "data.prompt_key") or "prompt"
    for index, row in enumerate(read_rows(path)):
        if (row.get("agent_name") or default) == AGENT:
            where = f"{path}: row {index}"
            number = (row.get("extra_info") or {}).get("index")
            yield Row(Task.from_row({**row, "prompt": row.get(key)}, where=where), where, number)


def _warn_of_unnumbered(path: Path, rows: Sequence[Row]) -> None:
    if shared := unnumbered([row.index for row in rows]):
        log.warning(
            "rows without an extra_info.index of their own are traced and sampled as one row",
            file=str(path),
            rows=len(shared),
        )


def _has_stock_rows(config: DictConfig, path: Path) -> bool:
    """Whether the file has rows for verl's `tool_agent`, which renders every tool of the lock."""
    default = OmegaConf.select(config, "actor_rollout_ref.rollout.agent.default_agent_loop")
    return any((row.get("agent_name") or default) == STOCK_AGENT for row in read_rows(path))


async def _check_stock_lock(lock: Lock, *, checked: Collection[str]) -> None:
    """Compare the lock with the live tools of all sources but the environments in `checked`."""
    left = {entry.source: entry for entry in lock.entries if entry.environment not in checked}
    for source, first in left.items():
        async with opened(gateway_config(first), name=source, source=source) as gateway:
            entries = [entry for entry in lock.entries if entry.source == source]
            refuse_differences(entries, gateway, lock=lock.entries, path=lock.path)


def _lock(config: DictConfig) -> Lock:
    path = OmegaConf.select(config, LOCK_KEY)
    if path and not Path(path).is_file():
        remedy = "write it with `mcp-rollout tool-config`, or leave it out"
        raise ConfigError(f"no such file: {path}", key=LOCK_KEY, remedy=remedy)
    return Lock(path, read_lock(path) if path else [])


async def _check_environment(
    name: str, config: DictConfig, settings: Settings, lock: Lock, rows: Sequence[Row]
) -> Shown:
    """Start the environment once, and validate it with its rows."""
    own = [row for row in rows if row.task.environment == name]
    try:
        environment = settings.apply(load_environment(name, settings.environments_dir))
    except ConfigError as error:
        raise ConfigError(f"{own[0].where} needs environment {name!r}: {error}") from error
    check_thinking(environment, config)
    async with opened(environment, name=name, source=environment.file) as gateway:
        locked = locked_tools(name, lock.entries, gateway, path=lock.path)
        async with gateway.lease(trajectory="preflight", task=own[0].task.task, seed=own[0].task.seed) as session:
            for fault in missing_roles(environment, session):
                raise fault
            live = {tool.exposed_name: tool.openai_schema() for tool in session.tools.values()}
    schemas = live if locked is None else locked
    for row in own:
        for fault in row_faults(row.task, environment, schemas.keys(), where=row.where):
            raise fault
    return Shown(list(schemas.values()), environment.user is not None)


def _tokens(config: DictConfig) -> ContinuousTokens:
    """Load the model's tokenizer and chat template as the trainer will use them."""
    from rollout.tokens.verl_builder import load_tokens

    model = config.actor_rollout_ref.model
    template_kwargs: Any = OmegaConf.to_container(config.data.get("apply_chat_template_kwargs") or OmegaConf.create({}))
    return load_tokens(
        str(model.path),
        tokenizer_path=model.get("tokenizer_path"),
        trust_remote_code=bool(model.get("trust_remote_code")),
        chat_template=model.get("custom_chat_template"),
        template_kwargs=template_kwargs,
        tool_format=str(config.actor_rollout_ref.rollout.multi_turn.format),
        key="actor_rollout_ref.model.path",
    )


def _check_prompts(
    config: DictConfig, tokens: ContinuousTokens, rows: Sequence[Row], shown: Mapping[str, Shown]
) -> None:
    """Validate that no prompt is too long: verl would truncate it, system message and tool schemas included."""
    from rollout.tokens.counting import prompt_length

    limit = int(config.actor_rollout_ref.rollout.prompt_length)
    lengths: list[int] = []
    for row in rows:
        try:
            lengths.append(prompt_length(tokens, row.task, selected(shown[row.task.environment].schemas, row.task)))
        except ConfigError as error:
            raise ConfigError(error.problem, file=row.where) from error
    longest = max(lengths)
    if longest > limit:
        too_long = sum(length > limit for length in lengths)
        raise ConfigError(
            f"the prompt has {longest} tokens, {limit} are allowed; {too_long} rows are too long",
            file=rows[lengths.index(longest)].where,
            key="data.max_prompt_length",
            remedy=f"raise it to at least {longest}, or give the rows fewer tools",
        )
    room = context_tokens(config.actor_rollout_ref.rollout)
    if room is not None and longest >= room:
        raise ConfigError(
            f"the prompt has {longest} tokens, and the engine's sequences at most {room}",
            file=rows[lengths.index(longest)].where,
            key="actor_rollout_ref.rollout.max_model_len",
            remedy="make it at least the sum of data.max_prompt_length and data.max_response_length",
        )


def _check_turns(tokens: ContinuousTokens, rows: Sequence[Row], shown: Mapping[str, Shown]) -> None:
    """Validate that the template renders the messages after a prompt, on the first row of each environment."""
    from rollout.tokens.template_check import check_template

    for row in {row.task.environment: row for row in reversed(rows)}.values():
        own = shown[row.task.environment]
        try:
            check_template(tokens, row.task.prompt, selected(own.schemas, row.task), has_user=own.has_user)
        except ConfigError as error:
            raise ConfigError(error.problem, file=row.where, key=error.key, remedy=error.remedy) from error
