"""Some servers at a time; whatever fails with one of them is in its report."""

from __future__ import annotations

import time

import anyio

from gateway.config.models import GatewayConfig
from gateway.errors import ConfigError, ConnectTimeout, GatewayError, ServerUnavailable
from rollout.doctor.examination import Examination, Options, Told
from rollout.doctor.report import ServerReport
from rollout.environment.diagnosis import diagnose
from rollout.environment.startup import located


async def examine(config: GatewayConfig, options: Options, *, told: Told = lambda _, __: None) -> list[ServerReport]:
    """A report for every server of `config`, in its order. `told` hears what is being done meanwhile."""
    reports: dict[str, ServerReport] = {}
    limit = anyio.CapacityLimiter(options.at_a_time)

    async def one(server: str) -> None:
        async with limit:
            reports[server] = await examine_server(server, config, options, told=told)
        told(server, "")

    async with anyio.create_task_group() as tasks:
        for server in config.servers:
            tasks.start_soon(one, server)
    return [reports[server] for server in config.servers]


async def examine_server(
    server: str, config: GatewayConfig, options: Options, *, told: Told = lambda _, __: None
) -> ServerReport:
    """Everything about one server; it raises nothing that the server could cause."""
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
            await Examination(server, config, options, report, told).run()
        if bound.cancelled_caught:
            report.problems.append(f"the examination was not over after {options.server_timeout_s:g} s")
    except Exception as error:  # boundary: a server that fails is a row of the report, and nobody else's end
        cause = _first(error)
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


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
