"""Options that say which worlds trajectories are played in: recorded and replayed ones, and worlds on other hosts."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from mcp_rollout.gateway.cassette.reading import Cassette
from mcp_rollout.gateway.cassette.recording import Recorder
from mcp_rollout.gateway.cassette.replaying import Missing, Replay
from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.gateway.remote.hosts import Hosts
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.overrides import overridden
from mcp_rollout.rollout.extras import install_command
from mcp_rollout.rollout.shards.hosts import hosts_of

TOKEN = "MCP_ROLLOUT_TOKEN"


@dataclass(frozen=True, kw_only=True, slots=True)
class Worlds:
    """Where a command's worlds are, and what it records and replays of them."""

    hosts: Annotated[
        str | None,
        typer.Option(
            help="Where worlds are: `ray`, or addresses of `mcp-rollout serve`, separated by commas, whose token is in "
            f"the variable {TOKEN}."
        ),
    ] = None
    record: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the servers' answers to a new cassette.")
    ] = None
    replay: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Answer from a cassette, or a directory of some.")
    ] = None
    replay_missing: Annotated[
        Missing, typer.Option(help="What a replay does where the cassette differs: fail, or go on with the servers.")
    ] = Missing.FAIL

    @contextmanager
    def cassettes(self) -> Generator[tuple[Recorder | None, Replay | None]]:
        """The recorder and the replay. Raises ConfigError where a file cannot be written or read."""
        replay = None if self.replay is None else Replay(Cassette.read(self.replay), self.replay_missing)
        recorder = None if self.record is None else Recorder(self.record, key="--record")
        try:
            yield recorder, replay
        finally:
            if recorder is not None:
                recorder.close()


def with_hosts(environments: Sequence[Environment], option: str | None) -> list[Environment]:
    """The environments with the hosts of the option, where it is given. Raises ConfigError."""
    if option is None:
        return list(environments)
    token = {"token": os.environ[TOKEN]} if os.environ.get(TOKEN) else {}
    addresses = [{"url": url.strip(), **token} for url in option.split(",")]
    hosts = "ray" if option == "ray" else addresses
    return [overridden(environment, {"hosts": hosts}, key="--hosts") for environment in environments]


@asynccontextmanager
async def opened_hosts(environments: Sequence[Environment]) -> AsyncGenerator[dict[str, Hosts | None]]:
    """Where the worlds of each environment are, by name; connected to Ray where one of them needs it.

    The cluster is the one that RAY_ADDRESS names or that runs on this machine, or a new one. Shards end with the block.
    """
    on_ray = {
        f"{environment.file or environment.name}: hosts.ray": environment.hosts.ray
        for environment in environments
        if environment.hosts and environment.hosts.ray
    }
    if not on_ray:
        yield {environment.name: hosts_of(environment) for environment in environments}
        return
    try:
        from mcp_rollout.rollout.shards.director import connected
    except ImportError as error:
        problem = f"shards on Ray need {error.name}, which is not installed"
        remedy = f"{install_command('verl')}, or give addresses of `mcp-rollout serve`"
        raise ConfigError(problem, key="hosts.ray", remedy=remedy) from error
    with connected(on_ray):
        yield {environment.name: hosts_of(environment) for environment in environments}
