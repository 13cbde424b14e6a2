# pyright: basic, reportMissingImports=false
"""Validation of a run's configuration, rows and environments, before a process is started or a GPU is taken."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import structlog
from areal.utils.environ import is_single_controller

from mcp_rollout.gateway.errors import ConfigError, raise_all
from mcp_rollout.rollout.areal.config import MCPConfig, processes_per_node, settings_of
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.parquet import count_rows
from mcp_rollout.rollout.environment.row_validation import Row, read_task_rows, warn_of_repeats
from mcp_rollout.rollout.formats import find_format
from mcp_rollout.rollout.loop.compaction import check_compaction
from mcp_rollout.rollout.loop.thinking import check_thoughts
from mcp_rollout.rollout.tokens.chat_template import read_chat_template
from mcp_rollout.rollout.tokens.verl_builder import load_tokens
from mcp_rollout.rollout.trace.store import TraceStore
from mcp_rollout.rollout.training.preflight import check_environments, check_turns, load_lock, longest_prompt

log = structlog.get_logger(__name__)


async def preflight(config: MCPConfig) -> None:
    """Validate settings, rows, environments, lock and lengths, and the chat template's rendering of later turns.

    Raises:
        ConfigError: the problems of the first check that fails, each with file, key and remedy.
        GatewayError: a required server does not start.
    """
    settings = settings_of(config)
    find_format(settings.tool_format, key="mcp.tool_format")
    check_rewards(config)
    check_sampling(config)
    check_divergence(config)
    TraceStore(settings.trace_dir, key="mcp.trace_dir").check()
    rows = _rows(config)
    check_steps(config, rows=count_rows(Path(config.train_dataset.path)))
    lock_path = str(settings.tool_config_path) if settings.tool_config_path else None
    lock = load_lock(lock_path, key="mcp.tool_config_path")
    processes = processes_per_node(config)
    shown = await check_environments(rows, settings, lock, workers_per_node=processes)
    for own in shown.values():
        settings.check_rows(own.environment)
        check_thoughts(own.environment, settings.tool_format)
        bounds = {"max_new_tokens": config.gconfig.max_new_tokens, "max_tokens": config.gconfig.max_tokens}
        check_compaction(own.environment, settings.limits_for(own.environment, **bounds))
        if is_single_controller():
            check_duration(config, own.environment)
    tokens = load_tokens(
        config.tokenizer_path,
        tool_format=settings.tool_format,
        chat_template=read_chat_template(settings.chat_template, key="mcp.chat_template"),
        template_kwargs=settings.chat_template_kwargs,
        key="tokenizer_path",
    )
    longest, row = longest_prompt(tokens, rows, shown, limit=settings.prompt_tokens)
    if longest >= config.gconfig.max_tokens:
        problem = f"the prompt has {longest} tokens, and prompt and response at most {config.gconfig.max_tokens}"
        remedy = "make it at least the sum of mcp.prompt_tokens and mcp.response_tokens"
        raise ConfigError(problem, file=f"{row.path}: row {row.number}", key="gconfig.max_tokens", remedy=remedy)
    check_turns(
        tokens,
        rows,
        shown,
        key="mcp.chat_template",
        tool_format=settings.tool_format,
        format_key="mcp.tool_format",
    )


def check_rewards(config: MCPConfig) -> None:
    """Validate that rewards, which are advantages of a group's trajectories already, are neither normalised nor lost.

    Raises:
        ConfigError: they would be normalised once more, over rows of several groups, or dropped.
    """
    if config.actor.reward_norm is not None:
        problem = "is set, and the workflow returns the advantages of a group's trajectories as rewards"
        raise ConfigError(problem, key="actor.reward_norm", remedy="set it to null")
    if config.actor.mask_no_eos_with_zero:
        problem = "drops the reward of the longest row of a batch, which AReaL takes for one that was cut"
        raise ConfigError(problem, key="actor.mask_no_eos_with_zero", remedy="set it to false")


def check_sampling(config: MCPConfig) -> None:
    """Validate that the trainer computes the probabilities that the engine samples with.

    Raises:
        ConfigError: the temperatures differ.
    """
    sampling = config.gconfig
    if config.actor.temperature != sampling.temperature:
        problem = f"is {config.actor.temperature}, and gconfig.temperature is {sampling.temperature}"
        raise ConfigError(problem, key="actor.temperature", remedy="set it to ${gconfig.temperature}")
    if sampling.top_p != 1.0 or sampling.top_k < 1_000_000:
        log.warning(
            "the engine renormalises the probabilities of the tokens it samples from, and the trainer does not: "
            "trained log-probabilities differ from sampled ones; leave gconfig.top_p and top_k at their defaults",
            top_p=sampling.top_p,
            top_k=sampling.top_k,
        )


def check_divergence(config: MCPConfig) -> None:
    """Validate that the divergence from the policy before training is computed where it has a weight.

    Raises:
        ConfigError: there is no reference policy, for which AReaL takes log-probabilities of zero; or its
            log-probabilities are those of another temperature.
    """
    weight, reference = config.actor.kl_ctl, config.ref
    if weight <= 0:
        return
    if reference is None:
        problem = f"is {weight}, and there is no reference policy"
        raise ConfigError(problem, key="actor.kl_ctl", remedy="fill in the section ref as configs/areal/grpo.yaml does")
    if reference.temperature != config.gconfig.temperature:
        problem = f"is {reference.temperature}, and gconfig.temperature is {config.gconfig.temperature}"
        raise ConfigError(problem, key="ref.temperature", remedy="set it to ${gconfig.temperature}")


def check_steps(config: MCPConfig, *, rows: int) -> None:
    """Validate that AReaL's loop has as many steps as it was asked for: it ends after its epochs without a word.

    Raises:
        ConfigError: the training file has fewer rows than a batch or than the steps need.
    """
    data, steps = config.train_dataset, config.total_train_steps
    epoch = rows // data.batch_size if data.drop_last else -(-rows // data.batch_size)
    if not epoch:
        problem = f"is {data.batch_size}, and {data.path} has {rows} rows"
        raise ConfigError(problem, key="train_dataset.batch_size", remedy="make it smaller, or write more rows")
    scheduled = epoch * config.total_train_epochs
    if steps is not None and steps > scheduled:
        problem = f"is {steps}, and {rows} rows give {scheduled} with total_train_epochs={config.total_train_epochs}"
        remedy = f"set total_train_epochs to {-(-steps // epoch)}, or write more rows"
        raise ConfigError(problem, key="total_train_steps", remedy=remedy)


def check_duration(config: MCPConfig, environment: Environment) -> None:
    """Raises ConfigError where a single controller would give up trajectories that are within their time."""
    most = environment.limits.wall_clock_s
    if most is not None and config.rollout.request_timeout <= most:
        problem = f"is {config.rollout.request_timeout}, and bounds a whole group with a single controller, of which a "
        problem += f"trajectory of {environment.name} may take {most} s"
        raise ConfigError(problem, key="rollout.request_timeout", remedy="make it longer than limits.wall_clock_s")


def _rows(config: MCPConfig) -> Sequence[Row]:
    """The rows of the training and validation files."""
    rows: list[Row] = []
    for dataset in (config.train_dataset, config.valid_dataset):
        if dataset is not None:
            found, problems = read_task_rows(Path(dataset.path))
            raise_all(problems)
            rows += found
    if not rows:
        remedy = "name a file that `mcp-rollout data` wrote"
        raise ConfigError("has no row for mcp_agent", key="train_dataset.path", remedy=remedy)
    warn_of_repeats(rows, [Path(config.train_dataset.path)])
    return rows
