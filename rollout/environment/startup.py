"""Starting the servers of a user's file; errors name the file and the key to correct."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from gateway.config.models import GatewayConfig
from gateway.errors import ConfigError, GatewayError, raise_all
from gateway.gateway import Gateway
from rollout.environment.config import Environment
from rollout.environment.diagnosis import diagnose


@asynccontextmanager
async def opened(
    config: GatewayConfig, *, name: str, source: str | Path, key: str = "servers"
) -> AsyncGenerator[Gateway]:
    """The gateway with every server running, required or not.

    Args:
        source: The file that names the servers.
        key: The key under which the file holds them.

    Raises:
        ConfigError: servers did not start; one error for each, with `source` and the server's key in it.
    """
    gateway = Gateway(_not_required(config), name=name)
    try:
        await gateway.__aenter__()
    except ConfigError as error:
        raise placed(error, source, key) from error
    try:
        raise_all(_failures(gateway, config, source, key))
        yield gateway
    finally:
        await gateway.__aexit__(None, None, None)


def opened_environment(environment: Environment) -> AbstractAsyncContextManager[Gateway]:
    """The gateway of an environment with all its servers running. Raises as `opened` does."""
    return opened(environment.gateway_config(), name=environment.name, source=environment.file)


@asynccontextmanager
async def opened_where_possible(
    config: GatewayConfig, *, name: str, source: str | Path, key: str = "servers"
) -> AsyncGenerator[tuple[Gateway, list[ConfigError]]]:
    """The gateway with the servers that start, required or not, and the errors of the others.

    Raises:
        ConfigError: an error that concerns no single server.
    """
    config = _not_required(config)
    servers = dict(config.servers)
    problems: list[ConfigError] = []
    while True:
        gateway = Gateway(config.model_copy(update={"servers": servers}), name=name)
        try:
            await gateway.__aenter__()
            break
        except ConfigError as error:
            # An entry that contradicts itself or what its server offers: start the others without it.
            wrong = max((each for each in servers if _is_about(each, error)), key=len, default=None)
            if wrong is None:
                raise placed(error, source, key) from error
            problems.append(placed(error, source, key))
            del servers[wrong]
    try:
        yield gateway, problems + _failures(gateway, config, source, key)
    finally:
        await gateway.__aexit__(None, None, None)


def _not_required(config: GatewayConfig) -> GatewayConfig:
    """Make every server optional, so that one failure does not hide the others."""
    servers = {server: entry.model_copy(update={"required": False}) for server, entry in config.servers.items()}
    return config.model_copy(update={"servers": servers})


def _failures(gateway: Gateway, config: GatewayConfig, source: str | Path, key: str) -> list[ConfigError]:
    """The errors of servers that did not start, in the order of the file."""
    failed = [gateway.failures[server] for server in config.servers if server in gateway.failures]
    return [_unavailable(error, config, source, key) for error in failed]


def placed(error: ConfigError, source: str | Path, key: str) -> ConfigError:
    """Return the error with the file, and with the key as that file spells it."""
    return ConfigError(error.problem, file=error.file or source, key=_spelled(error.key, key), remedy=error.remedy)


def _is_about(server: str, error: ConfigError) -> bool:
    return error.key == f"servers.{server}" or (error.key or "").startswith(f"servers.{server}.")


def _spelled(at: str | None, key: str) -> str | None:
    return f"{key}.{at.removeprefix('servers.')}" if at is not None and at.startswith("servers.") else at


def _unavailable(error: GatewayError, config: GatewayConfig, source: str | Path, key: str) -> ConfigError:
    cause = error.__cause__
    if isinstance(cause, ConfigError):
        return placed(cause, source, key)
    found = diagnose(error, config.servers[error.server or ""])
    return ConfigError(found.problem, file=source, key=f"{key}.{error.server}", remedy=found.remedy)
