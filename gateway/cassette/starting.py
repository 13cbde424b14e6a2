"""What leases in place of a gateway's own leases, where something is recorded or replayed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.cassette.lines import RecordedGateway
from gateway.cassette.recording import RecordedLeases, Recorder, recorded_gateway
from gateway.cassette.replaying import Replay, ReplayedLeases
from gateway.config.models import GatewayConfig
from gateway.connection.redaction import CassetteSecrets
from gateway.errors import ConfigError
from gateway.types import ToolDefinition

if TYPE_CHECKING:
    from gateway.leases.leasing import Leases

Catalogue = Mapping[str, tuple[ToolDefinition, ...]]


def cassette_leases(
    name: str,
    config: GatewayConfig,
    leases: Leases,
    catalogue: Catalogue,
    instructions: Mapping[str, str],
    record: Recorder | None,
    replay: Replay | None,
) -> RecordedLeases | ReplayedLeases | None:
    """The recording, or the replay with live servers behind it; None where there is neither.

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
