"""The public Python API: lease a world, call its tools, roll trajectories out, read traces. See docs/api.md.

The names live in `mcp_rollout.gateway` (sessions and tools, without any model) and `mcp_rollout.rollout` (trajectories,
tokens, engines, traces). Each is imported when it is asked for, since every module of ours imports this package first;
`__init__.pyi` says the same to type checkers. None of it imports torch or verl.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "gateway.cassette.reading": "Cassette",
    "gateway.cassette.recording": "Recorder",
    "gateway.cassette.replaying": "Missing Replay",
    "gateway.config.models": "GatewayConfig ServerConfig",
    "gateway.config.servers_file": "load_servers",
    "gateway.errors": "ConfigError GatewayError",
    "gateway.gateway": "Gateway",
    "gateway.leases.session": "Session",
    "gateway.types": "ToolDefinition ToolResult",
    "rollout.contract.calls": "Reply Score reply score start",
    "rollout.engines.engine": "EngineOptions",
    "rollout.engines.opening": "opened_engine",
    "rollout.engines.recorded": "RecordedTraces",
    "rollout.engines.sampling": "SamplingParameters",
    "rollout.environment.config": "Environment load_environment",
    "rollout.environment.rows": "environment_tasks",
    "rollout.environment.startup": "opened_environment",
    "rollout.environment.task": "Origin Task",
    "rollout.errors": "RolloutError",
    "rollout.evaluation.play": "Lengths jobs_of play_all",
    "rollout.loop.agent": "Agent",
    "rollout.loop.components": "WorldScore",
    "rollout.loop.limits": "Limits",
    "rollout.loop.trajectory": "roll_out",
    "rollout.loop.turns": "TrajectoryOver Turns",
    "rollout.tokens.chatml": "ByteTokens",
    "rollout.trace.reader": "Traces",
    "rollout.trace.record": "StopReason Trace",
    "rollout.trace.store": "TraceStore read_traces",
    "rollout.types": "Completion FinishReason Policy",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
