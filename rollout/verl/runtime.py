"""State that one worker process shares between its trajectories: gateways, the trace store, the settings.

`WORKER` is the project's only global state: verl builds a new agent loop for every trajectory and has no object that an
agent loop could use to share state within a worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import anyio
import structlog
from omegaconf import DictConfig

from gateway.cassette.recording import Recorder
from gateway.catalogue.tool_config import LockEntry
from gateway.gateway import Gateway
from rollout.collector import tune_collector
from rollout.engines.recorded import RecordedTraces
from rollout.environment.config import Environment, load_environment
from rollout.environment.validation import locked_tools
from rollout.loop.limits import Limits
from rollout.telemetry import export_spans
from rollout.tokens.verl_builder import ContinuousTokens
from rollout.trace.reader import Traces
from rollout.trace.store import TraceStore
from rollout.verl.batch_statistics import TrajectoryStatistics, statistics_collector
from rollout.verl.gateways import Gateways
from rollout.verl.run_record import training_record
from rollout.verl.settings import KEY, Settings, limits_for, reward_parts, workers_per_node
from rollout.verl.tool_agent_sessions import ToolAgentSessions

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenEnvironment:
    """An environment whose servers are running."""

    environment: Environment
    gateway: Gateway
    limits: Limits
    tools: dict[str, dict[str, Any]] | None
    """OpenAI-style schemas from the lock by exposed name; None without a lock."""
    run: str
    """Name of the run record."""


class Runtime:
    """The environments of one worker, each opened at its first trajectory."""

    def __init__(self, config: DictConfig, lock: Sequence[LockEntry], gateways: Gateways) -> None:
        self.settings = Settings.of(config)
        self.store = TraceStore(self.settings.trace_dir)
        self.reward_parts = reward_parts(self.settings)
        self._exits = ExitStack()
        if self.settings.otel:
            self._exits.callback(export_spans(key=f"{KEY}.otel"))
        stored = self.settings.recorded_engine
        self.recorded = None if stored is None else RecordedTraces(self._exits.enter_context(Traces(stored)))
        """Stored trajectories that are played in place of the inference server's model."""
        self._config = config
        self._rollout, self._lock, self._gateways = config.actor_rollout_ref.rollout, lock, gateways
        self._workers_per_node = workers_per_node(config)
        self._open: dict[str, OpenEnvironment] = {}
        self._narrow_view: bool | None = None

    def close(self) -> None:
        """Close the files of stored traces."""
        self.store.close()
        self._exits.close()

    def tokens(self, builder: Any, tokenizer: Any) -> ContinuousTokens:
        """Build a trajectory's token builder. Its template is probed once per worker, which has one model.

        Raises:
            ConfigError: verl's `multi_turn.format` names no tool format.
        """
        made = ContinuousTokens(builder, tokenizer, self._rollout.multi_turn.format, narrow_view=self._narrow_view)
        self._narrow_view = made.narrow_view
        return made

    async def environment(self, name: str) -> OpenEnvironment:
        """Return the running environment `name`, and start it first if needed.

        Raises:
            ConfigError: no such environment, or the lock does not match the live definitions.
            GatewayError: a required server did not start; the next call tries again.
        """
        if name not in self._open:
            environment = self.settings.apply(
                load_environment(name, self.settings.environments_dir), workers_per_node=self._workers_per_node
            )
            # If a server of the lock did not start, the policy would be shown tools that it cannot call.
            locked = {entry.definition.server for entry in self._lock if entry.environment == name}
            gateway = await self._gateways.get(name, lambda: environment.requiring(locked))
            tools = locked_tools(name, self._lock, gateway, path=self._rollout.multi_turn.tool_config_path)
            record = await anyio.to_thread.run_sync(training_record, environment, gateway, tools, self._config)
            self._open[name] = OpenEnvironment(
                environment=environment,
                gateway=gateway,
                limits=limits_for(environment, self._rollout),
                tools=tools,
                run=self.store.describe(record),
            )
            tune_collector()  # the worker now holds nearly all that lives as long as it does
        return self._open[name]


class Worker:
    """The process-wide state: gateways, sessions of verl's stock `tool_agent`, and `mcp_agent`'s runtime."""

    def __init__(self) -> None:
        self.gateways = Gateways()
        self.tool_agent_sessions = ToolAgentSessions(self.gateways)
        self.runtime: Runtime | None = None
        self._collector: Any = None

    async def report(self, trajectory: TrajectoryStatistics) -> None:
        """Send a finished trajectory's statistics to the job's collector."""
        if self._collector is None:
            self._collector = statistics_collector()
        await self._collector.add.remote(trajectory)

    def runtime_for(self, config: DictConfig, lock: Sequence[LockEntry]) -> Runtime:
        """Return the runtime, built at the first call.

        Raises:
            ConfigError: our section of the configuration is wrong.
        """
        if self.runtime is None:
            runtime = Runtime(config, lock, self.gateways)
            settings = runtime.settings
            self.gateways.replay = settings.opened_replay()
            if settings.record is not None:
                self.gateways.record = Recorder(settings.record, in_directory=True, key=f"{KEY}.record")
            self.runtime = runtime
        return self.runtime

    async def close(self) -> None:
        """Stop the servers and close the trace store."""
        await self.gateways.close()
        if self.runtime is not None:
            self.runtime.close()
            self.runtime = None
        self._collector = None


WORKER = Worker()
