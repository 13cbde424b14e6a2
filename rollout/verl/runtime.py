"""State that one worker process shares between its trajectories: gateways, the trace store, the settings.

`WORKER` is the project's only global state: verl builds a new agent loop for every trajectory and has no object that an
agent loop could use to share state within a worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import structlog
from omegaconf import DictConfig, OmegaConf

from mcp_rollout.gateway.catalogue.tool_config import LockEntry
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.gateway.logs import configure_logs_by_default
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.loop.agent import agent_settings
from mcp_rollout.rollout.loop.clock import Clock
from mcp_rollout.rollout.tokens.verl_builder import ContinuousTokens
from mcp_rollout.rollout.trace.run_record import RunRecord, describe_run
from mcp_rollout.rollout.trace.store import TraceStore
from mcp_rollout.rollout.training.environments import Environments, Lock
from mcp_rollout.rollout.training.gateways import Gateways, Recordings
from mcp_rollout.rollout.training.statistics import TrajectoryStatistics
from mcp_rollout.rollout.verl.batch_statistics import statistics_collector
from mcp_rollout.rollout.verl.settings import Settings, limits_for, workers_per_node
from mcp_rollout.rollout.verl.tool_agent_sessions import ToolAgentSessions

log = structlog.get_logger(__name__)
_SAMPLING = ("temperature", "top_p", "top_k", "n", "prompt_length", "response_length", "val_kwargs", "name", "custom")


class Runtime:
    """The environments of one worker, each opened at its first trajectory."""

    def __init__(self, config: DictConfig, lock: Sequence[LockEntry], gateways: Gateways) -> None:
        configure_logs_by_default()
        self.settings = settings = Settings.of(config)
        self.store = TraceStore(settings.trace_dir)
        self.reward_parts = settings.reward_parts
        self._recordings = Recordings(settings, gateways)
        self.recorded = self._recordings.engine
        self._rollout = config.actor_rollout_ref.rollout
        self._first_tokens: ContinuousTokens | None = None
        self.environments = Environments(
            gateways,
            self.store,
            Lock(path=self._rollout.multi_turn.tool_config_path, entries=lock),
            load=lambda name: settings.load(name, workers_per_node=workers_per_node(config)),
            limits=lambda environment: limits_for(environment, self._rollout),
            record=partial(record_of, config),
        )

    def close(self) -> None:
        """Close the journal and the files of stored traces."""
        self.store.close()
        self._recordings.close()

    def tokens(self, builder: Any, tokenizer: Any) -> ContinuousTokens:
        """Build a trajectory's token builder. Its template is probed once per worker, which has one model.

        Raises:
            ConfigError: verl's `multi_turn.format` names no tool format.
        """
        first, tool_format = self._first_tokens, self._rollout.multi_turn.format
        if first is None:
            first = self._first_tokens = ContinuousTokens(builder, tokenizer, tool_format)
            return first
        return ContinuousTokens(builder, tokenizer, tool_format, narrow_view=first.narrow_view, pieces=first.pieces)


class Worker:
    """The process-wide state: gateways, sessions of verl's stock `tool_agent`, and `mcp_agent`'s runtime."""

    def __init__(self) -> None:
        self.gateways = Gateways()
        self.tool_agent_sessions = ToolAgentSessions(self.gateways)
        self.runtime: Runtime | None = None
        self.clock = Clock()
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
            self.runtime = Runtime(config, lock, self.gateways)
        return self.runtime

    async def close(self) -> None:
        """Stop the servers and close the trace store."""
        await self.gateways.close()
        if self.runtime is not None:
            self.runtime.close()
            self.runtime = None
        self._collector = None


WORKER = Worker()


def record_of(
    config: DictConfig, environment: Environment, gateway: Gateway, tools: Mapping[str, dict[str, Any]] | None
) -> RunRecord:
    """What the trajectories of an environment share, from verl's configuration."""
    rollout: Any = OmegaConf.to_container(config.actor_rollout_ref.rollout, resolve=True)
    model: Any = OmegaConf.to_container(config.actor_rollout_ref.model, resolve=True)
    rollout["custom"]["mcp"].pop("environment", None)  # in `environment`, without secrets
    return describe_run(
        "training",
        environment,
        gateway,
        tools,
        engine="verl",
        model=model["path"],
        chat_template=model.get("custom_chat_template"),
        settings={"tool_format": rollout["multi_turn"]["format"], **agent_settings(environment)},
        sampling={name: rollout[name] for name in _SAMPLING if name in rollout} | {"seed": Settings.of(config).seed},
        lock=rollout["multi_turn"]["tool_config_path"],
    )
