"""Servers started for a user who wants all of them, and is told which file to mend where one does not come up."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from gateway.config import GatewayConfig
from gateway.errors import ConfigError, GatewayError, ServerUnavailable
from gateway.gateway import Gateway


@asynccontextmanager
async def opened(
    config: GatewayConfig, *, name: str, source: str | Path, all_needed: bool = True
) -> AsyncGenerator[Gateway]:
    """The gateway with every server running, required or not.

    Args:
        source: the file that names the servers.
        all_needed: False gives those that run, whatever is required; `problems` says what is wrong with the others.

    Raises:
        ConfigError: a server did not start; the message names `source` and the server's key in it.
    """
    if not all_needed:
        servers = {server: entry.model_copy(update={"required": False}) for server, entry in config.servers.items()}
        config = config.model_copy(update={"servers": servers})
    gateway = Gateway(config, name=name)
    try:
        await gateway.__aenter__()
    except ServerUnavailable as error:
        raise _problem(error, source) from error
    except ConfigError as error:
        raise ConfigError(error.problem, file=error.file or source, key=error.key, remedy=error.remedy) from error
    try:
        if all_needed:
            for failure in gateway.failures.values():
                raise _problem(failure, source) from failure
        yield gateway
    finally:
        await gateway.__aexit__(None, None, None)


def problems(gateway: Gateway, source: str | Path) -> list[ConfigError]:
    """One for each server that is not running, in the file's order."""
    return [
        _problem(gateway.failures[server], source) for server in gateway.config.servers if server in gateway.failures
    ]


def _problem(error: GatewayError, source: str | Path) -> ConfigError:
    cause = error.__cause__
    if isinstance(cause, ConfigError):
        return ConfigError(cause.problem, file=cause.file or source, key=cause.key, remedy=cause.remedy)
    problem = str(error).removeprefix(f"{error.server}: ")
    remedy = "start it by hand to see why; its entry may need another command, env, or start_timeout_s"
    return ConfigError(problem, file=source, key=f"servers.{error.server}", remedy=remedy)
