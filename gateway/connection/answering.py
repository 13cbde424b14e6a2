"""Who answers what servers ask for within calls, as far as the configuration says it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gateway.config.models import GatewayConfig
from gateway.connection.exchange import Answerer
from gateway.connection.sampling import Sampler
from gateway.errors import ConfigError
from gateway.types import RequestKind, Role, ToolDefinition


def sampling_answerer(config: GatewayConfig) -> Answerer | None:
    """The configured model; None where there is none."""
    if config.sampling is None:
        return None
    return Answerer(answer=Sampler(config.sampling).answer, timeout_s=config.sampling.timeout_s)


def requests_answered(config: GatewayConfig) -> tuple[frozenset[RequestKind], float]:
    """Which requests of servers somebody is configured to answer, and how long the slowest of them may take."""
    bounds = {
        kind: section.timeout_s
        for kind, section in (
            (RequestKind.ELICITATION, config.elicitation),
            (RequestKind.SAMPLING, config.sampling),
        )
        if section is not None
    }
    return frozenset(bounds), max(bounds.values(), default=0.0)


def check_elicitation(config: GatewayConfig, chosen: Mapping[str, Collection[ToolDefinition]]) -> None:
    """Raises `ConfigError` where the server that shall answer elicitation has no tool for it."""
    if config.elicitation is None or (server := config.elicitation.server) not in chosen:
        return
    if not any(tool.role is Role.ELICIT for tool in chosen[server]):
        raise ConfigError(
            f"{server!r} has no tool with the role elicit",
            key="elicitation.server",
            remedy="mark one in its _meta, or by roles: {elicit: TOOL}",
        )
