"""Examination of several servers at a time; a failure of one is part of its report."""

from __future__ import annotations

import time

import anyio

from gateway.config.models import GatewayConfig
from gateway.errors import ConfigError, ConnectTimeout, GatewayError, ServerUnavailable, innermost
from rollout.doctor.examination import Examination, OnProgress, Options
from rollout.doctor.report import ServerReport
from rollout.environment.diagnosis import diagnose
from rollout.environment.startup import located


async def examine(
    config: GatewayConfig, options: Options, *, on_progress: OnProgress = lambda _, __: None
) -> list[ServerReport]:
    """Examine every server of `config`; the reports are in its order."""
    reports: dict[str, ServerReport] = {}
    limit = anyio.CapacityLimiter(options.at_a_time)

    async def one(server: str) -> None:
        async with limit:
            reports[server] = await _examine_server(server, config, options, on_progress)
        on_progress(server, "")

    async with anyio.create_task_group() as tasks:
        for server in config.servers:
            tasks.start_soon(one, server)
    return [reports[server] for server in config.servers]


async def _examine_server(
    server: str, config: GatewayConfig, options: Options, on_progress: OnProgress
) -> ServerReport:
    """Examine one server; errors that the server causes become problems of the report."""
    entry = config.servers[server]
    report = ServerReport(
        server=server,
        transport=str(entry.kind),
        scope=str(entry.scope),
        scope_given="scope" in entry.model_fields_set,
    )
    began = time.perf_counter()
    try:
        with anyio.move_on_after(options.server_timeout_s) as bound:
            await Examination(server, config, options, report, on_progress).run()
        if bound.cancelled_caught:
            report.problems.append(f"the examination was not over after {options.server_timeout_s:g} s")
    except Exception as error:  # boundary: a server that fails must not end the examination of the others
        cause = innermost(error)
        if isinstance(cause, ConfigError):
            report.problems.append(str(located(cause, "", options.key)))
        elif isinstance(cause, ServerUnavailable) and report.protocol_version is None:
            report.problems.append(str(diagnose(cause, entry)))
        elif isinstance(cause, ConnectTimeout):
            busy = "it did before: is the machine busy? (raise start_timeout_s, or --at-a-time 1)"
            report.problems.append(f"it did not start within {entry.start_timeout_s:g} s; {busy}")
        elif isinstance(cause, GatewayError):
            report.problems.append(cause.problem)
        else:
            raise
    report.elapsed_s = time.perf_counter() - began
    return report
