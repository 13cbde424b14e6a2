"""Start the servers of a configuration; a server that does not start is an error that names its file and key."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from mcp_rollout.gateway.cassette.recording import Recorder
from mcp_rollout.gateway.cassette.replaying import Replay
from mcp_rollout.gateway.config.models import GatewayConfig
from mcp_rollout.gateway.errors import ConfigError, faults_of, one_error, raise_all
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.gateway.remote.hosts import Hosts
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.diagnosis import diagnose


@asynccontextmanager
async def opened(
    config: GatewayConfig,
    *,
    name: str,
    source: str | Path,
    key: str = "servers",
    record: Recorder | None = None,
    replay: Replay | None = None,
    hosts: Hosts | None = None,
) -> AsyncGenerator[Gateway]:
    """Open a gateway with every server running, whether required or not.

    Args:
        config: the servers.
        name: the gateway's name in logs.
        source: the file that names the servers.
        key: the key under which `source` has the servers.
        record: takes every lease.
        replay: answers in place of the servers.
        hosts: where the servers run, if not here.

    Raises:
        ConfigError: servers did not start; the message has a line for each, with `source` and the server's key.
    """
    opening = opened_where_possible(
        config, name=name, source=source, key=key, record=record, replay=replay, hosts=hosts
    )
    async with opening as (gateway, faults):
        raise_all(faults)
        yield gateway


def opened_environment(
    environment: Environment,
    *,
    record: Recorder | None = None,
    replay: Replay | None = None,
    hosts: Hosts | None = None,
) -> AbstractAsyncContextManager[Gateway]:
    """The gateway of an environment with all its servers running, or replayed. Raises as `opened` does."""
    name, source = environment.name, environment.file
    return opened(environment, name=name, source=source, record=record, replay=replay, hosts=hosts)


@asynccontextmanager
async def opened_where_possible(
    config: GatewayConfig,
    *,
    name: str,
    source: str | Path,
    key: str = "servers",
    record: Recorder | None = None,
    replay: Replay | None = None,
    hosts: Hosts | None = None,
) -> AsyncGenerator[tuple[Gateway, list[ConfigError]]]:
    """Open a gateway with the servers that start, whether required or not, and the error of each other server.

    Raises:
        ConfigError: the configuration has a fault that does not belong to one server.
    """
    # No server is required here, so that one failure does not hide the others.
    servers = {server: entry.model_copy(update={"required": False}) for server, entry in config.servers.items()}
    faults: list[ConfigError] = []
    while True:
        started = config.model_copy(update={"servers": servers})
        # Entered by hand, since only the start is tried again, and not what is done within.
        gateway = Gateway(started, name=name, record=record, replay=replay, hosts=hosts)
        try:
            await gateway.__aenter__()
            break
        except ConfigError as error:
            # The entry contradicts itself or what its server offers. Start the others without it.
            about = f"{error.key}."
            faulty = max((each for each in servers if about.startswith(f"servers.{each}.")), key=len, default=None)
            if faulty is None:
                raise one_error([*faults, located(error, source, key)]) from error
            faults.append(located(error, source, key))
            del servers[faulty]
    try:
        yield gateway, faults + _failures(gateway, config, source, key)
    finally:
        await gateway.__aexit__(None, None, None)


def located(error: ConfigError, source: str | Path, key: str) -> ConfigError:
    """The error with its file, and with its key as that file spells it; several as `ConfigErrors`."""
    return one_error([_located(each, source, key) for each in faults_of(error)])


def _located(error: ConfigError, source: str | Path, key: str) -> ConfigError:
    here = error.key
    if here is not None and here.startswith("servers."):
        here = f"{key}.{here.removeprefix('servers.')}"
    return ConfigError(error.problem, file=error.file or source, key=here, remedy=error.remedy)


def _failures(gateway: Gateway, config: GatewayConfig, source: str | Path, key: str) -> list[ConfigError]:
    """The errors of the servers that did not start, in the order of the file."""
    faults: list[ConfigError] = []
    for server in config.servers:
        if (error := gateway.failures.get(server)) is None:
            continue
        if isinstance(error.__cause__, ConfigError):
            faults.append(located(error.__cause__, source, key))
        else:
            faults.append(diagnose(error, config.servers[server], file=source, key=f"{key}.{server}"))
    return faults
