"""The option that says where worlds are."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any

import typer

from gateway.config.pydantic_errors import validate
from gateway.remote.hosts import Hosts
from rollout.environment.config import Environment
from rollout.environment.hosts_config import HostsConfig
from rollout.shards.hosts import hosts_of

TOKEN = "MCP_ROLLOUT_TOKEN"

HostsOption = Annotated[
    str | None,
    typer.Option(
        "--hosts",
        help="Where worlds are: `ray`, or addresses of `mcp-rollout serve`, separated by commas, whose token is in the "
        f"variable {TOKEN}.",
    ),
]


def with_hosts(environments: Sequence[Environment], option: str | None) -> list[Environment]:
    """The environments with the hosts of the option, where it is given. Raises ConfigError."""
    if option is None:
        return list(environments)
    token = {"token": os.environ[TOKEN]} if os.environ.get(TOKEN) else {}
    addresses = [{"url": url.strip(), **token} for url in option.split(",")]
    given: dict[str, Any] = {"ray": {}} if option == "ray" else {"addresses": addresses}
    hosts = validate(HostsConfig, given, file="mcp-rollout run", key="--hosts")
    return [environment.model_copy(update={"hosts": hosts}) for environment in environments]


@asynccontextmanager
async def opened_hosts(environments: Sequence[Environment]) -> AsyncGenerator[dict[str, Hosts | None]]:
    """Where the worlds of each environment are, by name; connected to Ray where one of them needs it.

    The cluster is the one that RAY_ADDRESS names, or a new one on this machine. Shards end with the block.
    """
    if not any(environment.hosts and environment.hosts.ray for environment in environments):
        yield {environment.name: hosts_of(environment) for environment in environments}
        return
    from rollout.shards.cluster import connected

    with connected():
        yield {environment.name: hosts_of(environment) for environment in environments}
