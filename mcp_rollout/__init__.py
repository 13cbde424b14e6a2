"""The public Python API: lease a world, call its tools, roll trajectories out, read traces. See docs/api.md.

The names live in `gateway` (sessions and tools, without any model) and `rollout` (trajectories, tokens, engines,
traces); this package re-exports them. It imports neither torch nor verl.
"""

# isort: off
from mcp_rollout_start import check_names

check_names()
# isort: on

from gateway.cassette.reading import Cassette
from gateway.cassette.recording import Recorder
from gateway.cassette.replaying import Missing, Replay
from gateway.config.models import GatewayConfig, ServerConfig
from gateway.config.servers_file import load_servers
from gateway.errors import ConfigError, GatewayError
from gateway.gateway import Gateway
from gateway.leases.session import Session
from gateway.types import ToolDefinition, ToolResult
from rollout.contract.calls import Reply, Score, reply, score, start
from rollout.engines.engine import EngineOptions
from rollout.engines.opening import opened_engine
from rollout.engines.recorded import RecordedTraces
from rollout.engines.sampling import SamplingParameters
from rollout.environment.config import Environment, load_environment
from rollout.environment.rows import environment_tasks
from rollout.environment.startup import opened_environment
from rollout.environment.task import Origin, Task
from rollout.errors import RolloutError
from rollout.evaluation.play import Lengths, jobs_of, play_all
from rollout.loop.agent import Agent
from rollout.loop.components import WorldScore
from rollout.loop.limits import Limits
from rollout.loop.trajectory import roll_out
from rollout.loop.turns import TrajectoryOver, Turns
from rollout.tokens.chatml import ByteTokens
from rollout.trace.reader import Traces
from rollout.trace.record import StopReason, Trace
from rollout.trace.store import TraceStore, read_traces
from rollout.types import Completion, FinishReason, Policy

__all__ = [
    "Agent",
    "ByteTokens",
    "Cassette",
    "Completion",
    "ConfigError",
    "EngineOptions",
    "Environment",
    "FinishReason",
    "Gateway",
    "GatewayConfig",
    "GatewayError",
    "Lengths",
    "Limits",
    "Missing",
    "Origin",
    "Policy",
    "RecordedTraces",
    "Recorder",
    "Replay",
    "Reply",
    "RolloutError",
    "SamplingParameters",
    "Score",
    "ServerConfig",
    "Session",
    "StopReason",
    "Task",
    "ToolDefinition",
    "ToolResult",
    "Trace",
    "TraceStore",
    "Traces",
    "TrajectoryOver",
    "Turns",
    "WorldScore",
    "environment_tasks",
    "jobs_of",
    "load_environment",
    "load_servers",
    "opened_engine",
    "opened_environment",
    "play_all",
    "read_traces",
    "reply",
    "roll_out",
    "score",
    "start",
]
