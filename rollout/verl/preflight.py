"""Validation of a run's configuration, rows and environments, before Ray starts or a GPU is taken.

Hydra calls `PreflightCallback` with the composed configuration (`hydra.callbacks` in configs/mcp_grpo.yaml).
"""

from __future__ import annotations

import asyncio
import io
import sys
import traceback
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog
from hydra.core.utils import JobReturn
from hydra.errors import InstantiationException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config

from mcp_rollout.gateway.catalogue.hidden_text import visible
from mcp_rollout.gateway.errors import ConfigError, Faults, GatewayError, printed, raise_all
from mcp_rollout.gateway.logs import configure_logs_by_default
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.parquet import count_rows, read_rows
from mcp_rollout.rollout.environment.row_validation import (
    STOCK_AGENT,
    Row,
    RowProblem,
    environment_problem,
    read_task_rows,
    shared_indices,
    shared_problem,
    warn_of_repeats,
)
from mcp_rollout.rollout.environment.startup import opened
from mcp_rollout.rollout.environment.validation import LOCK_KEY, refuse_differences
from mcp_rollout.rollout.errors import StopTraining
from mcp_rollout.rollout.loop.thinking import check_thoughts
from mcp_rollout.rollout.trace.store import TraceStore
from mcp_rollout.rollout.training.environments import Lock
from mcp_rollout.rollout.training.preflight import Shown, check_environments, check_turns, load_lock, longest_prompt
from mcp_rollout.rollout.training.refusals import refuse
from mcp_rollout.rollout.training.settings import share
from mcp_rollout.rollout.types import ModelTokens
from mcp_rollout.rollout.verl.agent_names import registered_agents, unknown_agents
from mcp_rollout.rollout.verl.custom_reward import check_custom_reward
from mcp_rollout.rollout.verl.modules import check_names, import_modules
from mcp_rollout.rollout.verl.refusals import GIVEN, OF_THE_MACHINE, OF_THE_RUN, check_environment
from mcp_rollout.rollout.verl.refused_run import Run
from mcp_rollout.rollout.verl.settings import (
    KEY,
    TEMPLATE_KEY,
    Settings,
    check_model_length,
    context_tokens,
    read_template,
    workers_per_node,
)
from mcp_rollout.rollout.verl.tool_agent_sessions import gateway_config

log = structlog.get_logger(__name__)

STOPPED = 3
"""Exit status of a training that stopped itself, see `StopTraining`."""


class PreflightCallback(Callback):
    """Ends the program with one message: exit status 2 if the run cannot work, 3 if training has stopped itself."""

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        """Prepare this process as verl's are, by the modules that they import first, and the configuration they get.

        The text of our `chat_template` replaces its file in verl's key: so every process of verl has the template, also
        those that load a tokenizer without us, and none reads the file.
        """
        with _printed():
            import_modules(config)
            read_template(config)

    def on_job_start(self, config: DictConfig, **_: Any) -> None:
        with _printed():
            asyncio.run(preflight(config))

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **_: Any) -> None:
        """End the program with `STOPPED` where training stopped itself: Hydra would end it as after any exception."""
        error: Any = getattr(job_return, "_return_value", None)
        if isinstance(error, StopTraining):  # of Ray's, which has the traceback of another process in its text, too
            sys.stderr.write(visible(f"error: {getattr(error, 'cause', error)}\n"))
            raise SystemExit(STOPPED)


@contextmanager
def _printed() -> Generator[None]:
    configure_logs_by_default()
    try:
        yield
    except (ConfigError, GatewayError) as error:
        sys.stderr.write(visible(printed(error)))
        raise SystemExit(2) from error
    except Exception as error:  # Hydra's boundary: it logs any other exception and starts the run
        traceback.print_exc()
        raise SystemExit(1) from error


async def preflight(config: DictConfig) -> None:
    """Validate settings, rows, environments, lock and lengths, and the chat template's rendering of later turns.

    Raises:
        ConfigError: all problems of the configuration and the files that it names; without any, those of the
            environments with their rows; without any, those of the prompts; without any, those of this machine, which
            lacks the engine or a GPU. Each has file, key and remedy.
        GatewayError: a required server does not start.
    """
    run = Run(config, settings := Settings.of(config))
    refuse(GIVEN, run)
    rows, lock = _check_files(run)
    shown = await check_environments(rows, settings, lock, workers_per_node=workers_per_node(config))
    if any(_has_stock_rows(config, path) for path in _files(config)):
        await _check_stock_lock(lock, checked=shown, workers=workers_per_node(config))
    if rows:
        faults = Faults()
        tokens = _tokens(config)
        faults.check(check_model_length, config)
        faults.check(_check_prompts, config, tokens, rows, shown)
        faults.check(
            check_turns,
            tokens,
            rows,
            shown,
            key=f"{KEY}.chat_template",
            tool_format=str(config.actor_rollout_ref.rollout.multi_turn.format),
            format_key="actor_rollout_ref.rollout.multi_turn.format",
        )
        raise_all(faults)
    refuse(OF_THE_MACHINE, run)  # last: without GPUs, all else can be validated


def _check_files(run: Run) -> tuple[list[Row], Lock]:
    """Validate what the configuration says, and the files that it names; returns rows and lock."""
    (config, settings), faults = (run.config, run.settings), Faults()
    rows: list[Row] = []
    lock: Lock | None = None
    faults.check(refuse, OF_THE_RUN, run)
    with faults.collected():
        TraceStore(settings.trace_dir).check()
    with faults.collected():
        agents = registered_agents(config)
        for path in _files(config):
            with faults.collected():
                faults += unknown_agents(config, path, agents)
                rows += _rows(config, path)
    warn_of_repeats(rows, _files(config, "data.train_files"))
    if rows:
        faults.check(check_custom_reward, config, settings.custom_reward, key=f"{KEY}.custom_reward")
    # After `registered_agents`, which imports what may register names too
    faults.check(check_names, config)
    faults.check(_check_by_verl, config)
    faults.check(_check_batch_size, config)
    with faults.collected():
        lock = load_lock(OmegaConf.select(config, LOCK_KEY), key=LOCK_KEY)
    # One row for each environment, the first that names it, which messages quote.
    for row in {row.task.environment: row for row in reversed(rows)}.values():
        with faults.collected():
            environment = _environment(row, settings, config)
            faults.check(check_thoughts, environment, str(config.actor_rollout_ref.rollout.multi_turn.format))
            check_environment(replace(run, own_environment=environment))
    raise_all(faults)
    assert lock is not None
    return rows, lock


def _check_by_verl(config: DictConfig) -> None:
    """Let verl validate the configuration, which it does only once Ray has started."""
    try:
        with redirect_stdout(io.StringIO()):
            validate_config(config, need_reference_policy(config), need_critic(config))
    except Exception as error:  # the boundary of verl's code, which raises what it likes
        # Hydra's own names the section; the message of verl's names the key.
        key = str(error).rpartition("full_key: ")[2] if isinstance(error, InstantiationException) else None
        cause = error.__cause__ or error
        problem = f"verl refuses the configuration: {type(cause).__name__}: {cause}"
        raise ConfigError(problem, key=key, remedy="see verl/trainer/config") from error


def _check_batch_size(config: DictConfig) -> None:
    """Refuse a batch that the training files cannot fill once: verl drops what does not fill one."""
    files = config.data.train_files
    paths = [Path(str(name)).expanduser() for name in ([files] if isinstance(files, str) else files)]
    if any(path.suffix in (".json", ".jsonl") for path in paths):
        return
    rows, size = sum(map(count_rows, paths)), int(config.data.train_batch_size)
    if rows < size:
        problem = f"is {size}, and data.train_files have {rows} rows"
        remedy = f"at most {rows}, or write more rows with `mcp-rollout data`"
        raise ConfigError(problem, key="data.train_batch_size", remedy=remedy)


def _files(config: DictConfig, *keys: str) -> list[Path]:
    """The parquet files of these keys, by default of `data.train_files` and `data.val_files`, without duplicates."""
    names: list[str] = []
    for key in keys or ("data.train_files", "data.val_files"):
        files = OmegaConf.select(config, key)
        names += [files] if isinstance(files, str) else map(str, files or [])
    paths = [Path(name).expanduser() for name in dict.fromkeys(names)]
    return [path for path in paths if path.suffix not in (".json", ".jsonl")]


def _rows(config: DictConfig, path: Path) -> list[Row]:
    """The rows of one file that our agent loop plays."""
    default = OmegaConf.select(config, "actor_rollout_ref.rollout.agent.default_agent_loop")
    key = OmegaConf.select(config, "data.prompt_key") or "prompt"
    rows, problems = read_task_rows(path, default_agent=default, prompt_key=key)
    raise_all(problems)
    if shared := shared_indices(rows):
        if config.actor_rollout_ref.rollout.full_determinism:
            problem = f"{shared_problem(shared)}, and under full_determinism request ids are made of it"
            remedy = "number the rows from 0, as `mcp-rollout data` does"
            raise RowProblem(problem, path=path, row=None, key="extra_info.index", remedy=remedy)
        log.warning(
            "rows without an extra_info.index of their own are traced and sampled as one row",
            file=str(path),
            rows=len(shared),
        )
    return rows


def _has_stock_rows(config: DictConfig, path: Path) -> bool:
    """Whether the file has rows for verl's `tool_agent`, which renders every tool of the lock."""
    default = OmegaConf.select(config, "actor_rollout_ref.rollout.agent.default_agent_loop")
    return any((row.get("agent_name") or default) == STOCK_AGENT for row in read_rows(path))


async def _check_stock_lock(lock: Lock, *, checked: Collection[str], workers: int) -> None:
    """Compare the lock with the live tools of all sources but the environments in `checked`.

    Args:
        workers: Agent-loop workers of a node, which share its sessions and processes.
    """
    left = {entry.source: entry for entry in lock.entries if entry.environment not in checked}
    for source, first in left.items():
        config = share(gateway_config(first), workers, file=source)
        async with opened(config, name=source, source=source) as gateway:
            entries = [entry for entry in lock.entries if entry.source == source]
            refuse_differences(entries, gateway, lock=lock.entries, path=lock.path)


def _environment(row: Row, settings: Settings, config: DictConfig) -> Environment:
    """The environment of a row, with the trainer's overrides."""
    try:
        return settings.load(row.task.environment, workers_per_node=workers_per_node(config))
    except ConfigError as error:
        if error.file is None and (error.key or "").startswith("actor_rollout_ref."):
            raise  # the trainer's key is wrong, and neither the row nor its environment
        raise environment_problem(row, error) from error


def _tokens(config: DictConfig) -> ModelTokens:
    """Load the model's tokenizer and chat template as the trainer will use them."""
    from mcp_rollout.rollout.tokens.verl_builder import load_tokens

    model = config.actor_rollout_ref.model
    template_kwargs: Any = OmegaConf.to_container(config.data.get("apply_chat_template_kwargs") or OmegaConf.create({}))
    return load_tokens(
        str(model.path),
        tokenizer_path=model.get("tokenizer_path"),
        trust_remote_code=bool(model.get("trust_remote_code")),
        chat_template=OmegaConf.select(config, TEMPLATE_KEY),
        template_kwargs=template_kwargs,
        tool_format=str(config.actor_rollout_ref.rollout.multi_turn.format),
        key="actor_rollout_ref.model.path",
    )


def _check_prompts(config: DictConfig, tokens: ModelTokens, rows: Sequence[Row], shown: Mapping[str, Shown]) -> None:
    """Refuse prompts that the trainer would cut, and with them the tools."""
    limit = int(config.actor_rollout_ref.rollout.prompt_length)
    longest, row = longest_prompt(tokens, rows, shown, limit=limit)
    room = context_tokens(config.actor_rollout_ref.rollout)
    if room is not None and longest >= room:
        raise ConfigError(
            f"the prompt has {longest} tokens, and the engine's sequences at most {room}",
            file=f"{row.path}: row {row.number}",
            key="actor_rollout_ref.rollout.max_model_len",
            remedy="make it at least the sum of data.max_prompt_length and data.max_response_length",
        )
