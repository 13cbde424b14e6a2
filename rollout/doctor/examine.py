"""Examination of several servers at a time; a failure of one is part of its report."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection
from dataclasses import replace

import anyio

from mcp_rollout.gateway.config.models import GatewayConfig, ServerConfig
from mcp_rollout.gateway.errors import (
    ConfigError,
    ConnectTimeout,
    GatewayError,
    HarnessError,
    ServerUnavailable,
    innermost,
)
from mcp_rollout.rollout.doctor.examination import Examination, OnProgress, Options
from mcp_rollout.rollout.doctor.report import ServerReport
from mcp_rollout.rollout.environment.diagnosis import diagnose
from mcp_rollout.rollout.environment.startup import located

_TRIES = 2
"""Of an examination in which the server started too late or went away: on a busy machine that happens by chance."""


async def examine(
    config: GatewayConfig,
    options: Options,
    *,
    only: Collection[str] | None = None,
    on_progress: OnProgress = lambda _, __: None,
    finished: dict[str, ServerReport] | None = None,
) -> list[ServerReport]:
    """Examine servers of `config`; the reports are in its order.

    Args:
        only: The servers to examine; None for all. The directory of a lease is shared with the others also.
        finished: Filled with each report as soon as it is there, for a caller that may be interrupted.
    """
    reports: dict[str, ServerReport] = {} if finished is None else finished
    servers = [server for server in config.servers if only is None or server in only]
    limit = anyio.CapacityLimiter(options.at_a_time)

    async def one(server: str) -> None:
        async with limit:
            reports[server] = report = await _examine_server(server, config, options, on_progress)
            if report.refused and (report.unknown or report.advice is None):
                # Its world may be elsewhere.
                reached = await _examine_server(server, config, options, on_progress, report.refused)
                if reached.advice is not None and (report.determinism is None or not reached.unknown):
                    reports[server] = replace(reached, refused=report.refused)
        on_progress(server, "")

    async with anyio.create_task_group() as tasks:
        for server in servers:
            tasks.start_soon(one, server)
    return [reports[server] for server in servers]


async def _examine_server(
    server: str, config: GatewayConfig, options: Options, on_progress: OnProgress, reaches: tuple[str, ...] = ()
) -> ServerReport:
    """Examine one server; errors that the server causes become problems of the report.

    Args:
        reaches: Addresses that it was refused before, see `Examination`.
    """
    entry = config.servers[server]
    began = time.perf_counter()
    failures: list[str] = []
    while True:
        report = ServerReport(
            server=server,
            transport=str(entry.kind),
            scope=str(entry.scope),
            scope_given="scope" in entry.model_fields_set,
        )
        examination = Examination(server, config, options, report, on_progress, reaches)
        chance = await _examine_once(examination, report, entry, options)
        failures += [chance] if chance else []
        if not chance or len(failures) == _TRIES:
            break
    if not chance:
        report.flaky += [f"an examination failed and the next one did not: {failure}" for failure in failures]
    report.elapsed_s = time.perf_counter() - began
    return report


async def _examine_once(examination: Examination, report: ServerReport, entry: ServerConfig, options: Options) -> str:
    """Fill in the report; return the failure if it may be due to chance, else the empty text."""
    try:
        with anyio.move_on_after(options.server_timeout_s) as bound:
            await examination.run()
        if bound.cancelled_caught:
            report.problems.append(f"the examination was not over after {options.server_timeout_s:g} s")
    except Exception as error:  # boundary: a server that fails must not end the examination of the others
        # Gateways run in task groups, which wrap what a server caused.
        cause = innermost(error)
        if isinstance(cause, ConfigError):
            report.problems.append(str(located(cause, "", options.key)))
        elif isinstance(cause, ServerUnavailable) and report.protocol_version is None:
            report.problems.append(str(diagnose(_as_written(cause, entry), entry)))
            return cause.problem if isinstance(cause, ConnectTimeout) else ""
        elif isinstance(cause, ConnectTimeout):
            busy = "it did before: is the machine busy? (raise start_timeout_s, or --at-a-time 1)"
            report.problems.append(f"it did not start within {entry.start_timeout_s:g} s; {busy}")
            return report.problems[-1]
        elif isinstance(cause, HarnessError):
            if not report.problems:
                report.problems.append(cause.problem)
        elif isinstance(cause, GatewayError):
            report.problems.append(_as_written(cause, entry).problem)
            return report.problems[-1]
        else:
            raise
    return ""


def _as_written(error: GatewayError, entry: ServerConfig) -> GatewayError:
    """The error with the file's command in the place of the program that confines it."""
    error.problem = error.problem.replace(repr(sys.executable), repr(entry.label))
    return error
