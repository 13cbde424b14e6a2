"""What leases in place of a gateway's own leases, where it records or replays; and leases from a cassette."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import structlog

from mcp_rollout.gateway.cassette.answering import ReplayedSending
from mcp_rollout.gateway.cassette.lines import RecordedGateway, RecordedLease
from mcp_rollout.gateway.cassette.reading import Cassette, CassetteLease, lease_key
from mcp_rollout.gateway.cassette.recording import RecordedLeases, Recorder, recorded_gateway
from mcp_rollout.gateway.config.models import GatewayConfig
from mcp_rollout.gateway.connection.redaction import CassetteSecrets
from mcp_rollout.gateway.errors import ConfigError, ReplayMismatch
from mcp_rollout.gateway.leases.leasing import Leases
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.gateway.types import LeaseRequest, ToolDefinition, canonical_json

log = structlog.get_logger(__name__)


class Missing(StrEnum):
    """What a replay does where the cassette lacks a trajectory, or a trajectory asks for something else."""

    FAIL = "fail"
    """The trajectory fails with `ReplayMismatch`."""
    LIVE = "live"
    """The servers answer. They are sent the trajectory's calls so far first, to give them its state."""


@dataclass(frozen=True, slots=True)
class Replay:
    """A cassette to replay."""

    cassette: Cassette
    missing: Missing = Missing.FAIL


class ReplayedLeases:
    """Leases from a cassette. Each recorded lease is given out once, in the order of the file.

    Args:
        live: what leases the servers where the cassette lacks something; None fails.
    """

    def __init__(
        self,
        cassette: Cassette,
        config: GatewayConfig,
        name: str,
        catalogue: Mapping[str, tuple[ToolDefinition, ...]],
        live: Leases | RecordedLeases | None,
    ) -> None:
        self._cassette, self._config, self._name, self._live = cassette, config, name, live
        self._secrets = CassetteSecrets(config)
        self._harness = {
            (tool.role, server): tool for server, tools in catalogue.items() for tool in tools if tool.role is not None
        }
        self._given: dict[str, int] = {}
        """Number of leases given out, by key."""
        self._warned: set[str] = set()

    @asynccontextmanager
    async def lease(self, request: LeaseRequest) -> AsyncGenerator[Session]:
        """As `Gateway.lease`.

        Raises:
            ReplayMismatch: the cassette has no such lease; or, when the block is left, it has further calls.
            GatewayError: as recorded.
        """

        live, recorded = self._live, self._next(request)
        if isinstance(recorded, ReplayMismatch):
            if live is None:
                raise recorded
            log.info("replay.live", trajectory=request.trajectory, reason=str(recorded))
            async with live.lease(request) as session:
                yield session
            return
        if recorded.lease.failure is not None:
            # As when it was recorded: a lease that was not granted is part of the trajectory.
            raise recorded.lease.failure.error()
        # Where a recorder runs, the new recording takes the place of this one in the next replay.
        continued = replace(request, replaces=recorded.digest)
        # Holds the live lease, if one is taken: it is left here, after the session that uses it.
        async with AsyncExitStack() as stack:
            sending = ReplayedSending(
                recorded,
                request.trajectory,
                query=lambda key: self._cassette.query(self._name, key),
                secrets=self._secrets,
                go_live=None if live is None else lambda: stack.enter_async_context(live.lease(continued)),
            )
            session = self._session(request, sending)
            try:
                if request.task is not None:
                    await session.reset(request.task)
                yield session
                # Not in `finally`: of a trajectory that failed, further calls make no difference.
                sending.check_finished()
            finally:
                # Before the stack releases the live servers: a task that outlives the block cannot call them any more.
                session.end()

    def _session(self, request: LeaseRequest, sending: ReplayedSending) -> Session:
        return Session(
            trajectory=request.trajectory,
            seed=request.seed,
            tools=request.shown_tools,
            later_tools=request.hidden_tools,
            lease_wait_s=0.0,
            _config=self._config,
            _harness=self._harness,
            _sending=sending,
            _wait_for_changes=_no_changes,
            _warned=self._warned,
        )

    def _next(self, request: LeaseRequest) -> CassetteLease | ReplayMismatch:
        """The next recorded lease of a key. A lease without a task may only read, and then needs no recorded one."""
        path, task, seed, identity = str(self._cassette.path), request.task, request.seed, request.identity
        key = lease_key(self._name, task, seed, identity)
        recorded, given = self._cassette.leases.get(key, []), self._given.get(key, 0)
        # Nothing waits in here: of two trajectories with one key, each gets a recording of its own.
        if given < len(recorded):
            self._given[key] = given + 1
            return recorded[given]
        if task is None:
            return CassetteLease(path, RecordedLease(kind="lease", gateway=self._name, task=None, seed=seed))
        asked = f"{self._name}: task {task!r}, seed {seed}, {canonical_json(dict(identity))}"
        if recorded:
            return ReplayMismatch(f"{path} has {asked} {len(recorded)} times, and it was asked for once more")
        return ReplayMismatch(f"{path} has no trajectory of {asked}")


async def _no_changes(_: Collection[Any]) -> None:
    """The tools of a cassette do not change while a trajectory runs."""


def cassette_leases(
    name: str,
    config: GatewayConfig,
    leases: Leases,
    catalogue: Mapping[str, tuple[ToolDefinition, ...]],
    instructions: Mapping[str, str],
    record: Recorder | None,
    replay: Replay | None,
) -> RecordedLeases | ReplayedLeases | None:
    """The recording, or the replay with live servers behind it; None if there is neither.

    Raises:
        ConfigError: the cassette has no such gateway, or other tools than the live servers.
    """
    if record is None and replay is None:
        return None
    live: Leases | RecordedLeases = leases
    own = recorded_gateway(name, catalogue, instructions, CassetteSecrets(config))
    if record is not None:
        live = RecordedLeases(leases, record, own, config)
    if replay is None:
        assert isinstance(live, RecordedLeases)
        return live
    # Compared at the start: calls that are missing live would mix answers of other tools into the trajectory.
    if recorded_in(replay, name) != own:
        problem = f"was recorded with other tools or instructions than those of {name}'s servers now"
        raise ConfigError(problem, file=replay.cassette.path, remedy="record again")
    return ReplayedLeases(replay.cassette, config, name, catalogue, live)


def replay_only(name: str, config: GatewayConfig, replay: Replay, record: Recorder | None) -> RecordedGateway:
    """The recorded servers of a replay without live ones.

    Raises:
        ConfigError: there is something to record, or the cassette has other servers.
    """
    if record is not None:
        remedy = "record live, or replay with what is missing live"
        raise ConfigError("a replay without servers has nothing to record", key="record", remedy=remedy)
    recorded = recorded_in(replay, name)
    if unknown := recorded.servers.keys() ^ config.servers.keys():
        problem = f"has other servers than {name}: {', '.join(sorted(unknown))}"
        raise ConfigError(problem, file=replay.cassette.path, key="servers", remedy="record again")
    return recorded


def recorded_in(replay: Replay, name: str) -> RecordedGateway:
    """Raises ConfigError where the cassette was recorded with another environment."""
    cassette = replay.cassette
    if name not in cassette.gateways:
        remedy = f"it has: {', '.join(cassette.gateways) or 'none'}"
        raise ConfigError(f"has no environment {name!r}", file=cassette.path, key="gateway", remedy=remedy)
    return cassette.gateways[name]
