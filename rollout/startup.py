"""Servers started for a user who wants all of them, and is told which file to mend where one does not come up."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from gateway.config import GatewayConfig
from gateway.errors import ConfigError, GatewayError, ServerUnavailable
from gateway.gateway import Gateway


@asynccontextmanager
async def opened(config: GatewayConfig, *, name: str, source: str | Path) -> AsyncGenerator[Gateway]:
    """The gateway with every server running, required or not.

    Args:
        source: the file that names the servers.

    Raises:
        ConfigError: a server did not start; the message names `source` and the server's key in it.
    """
    gateway = Gateway(config, name=name)
    try:
        await gateway.__aenter__()
    except ServerUnavailable as error:
        raise _problem(error, source) from error
    except ConfigError as error:
        raise ConfigError(error.problem, file=error.file or source, key=error.key, remedy=error.remedy) from error
    try:
        for failure in gateway.failures.values():
            raise _problem(failure, source) from failure
        yield gateway
    finally:
        await gateway.__aexit__(None, None, None)


def _problem(error: GatewayError, source: str | Path) -> ConfigError:
    problem = str(error).removeprefix(f"{error.server}: ")
    remedy = "start it by hand to see why; its entry may need another command, env, or start_timeout_s"
    return ConfigError(problem, file=source, key=f"servers.{error.server}", remedy=remedy)
