"""What one worker process shares between its trajectories: gateways, the trace journal, the settings.

`WORKER` is the project's one piece of global state: verl builds an agent loop anew for every trajectory and gives it no
place of its own in the worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from omegaconf import DictConfig

from gateway.catalogue.tool_config import LockEntry
from gateway.errors import ConfigError
from gateway.gateway import Gateway
from rollout.environment.config import Environment, environment_names, load_environment
from rollout.environment.validation import locked_tools
from rollout.loop.limits import Limits
from rollout.tokens.verl_builder import ContinuousTokens
from rollout.trace.store import TraceStore
from rollout.verl.gateways import Gateways
from rollout.verl.ledger import Entry, start_ledger
from rollout.verl.settings import Settings, limits_for
from rollout.verl.stock_session import StockSessions

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenEnvironment:
    """An environment whose servers are running."""

    environment: Environment
    gateway: Gateway
    limits: Limits
    tools: dict[str, dict[str, Any]] | None
    """OpenAI-style schemas from the lock, by exposed name; None where there is no lock."""


class Runtime:
    """The environments of one worker, each opened at its first trajectory."""

    def __init__(self, config: DictConfig, lock: Sequence[LockEntry], gateways: Gateways) -> None:
        self.settings = Settings.of(config)
        self.store = TraceStore(self.settings.trace_dir)
        self.reward_parts = reward_parts(self.settings)
        self._rollout, self._lock, self._gateways = config.actor_rollout_ref.rollout, lock, gateways
        self._workers_per_node = -(-self._rollout.agent.num_workers // config.trainer.nnodes)
        self._open: dict[str, OpenEnvironment] = {}
        self._narrow_view: bool | None = None

    def tokens(self, builder: Any, tokenizer: Any) -> ContinuousTokens:
        """A trajectory's token builder. What its template allows is tried out once: a worker has one model.

        Raises:
            ConfigError: verl's `multi_turn.format` names no tool format.
        """
        made = ContinuousTokens(builder, tokenizer, self._rollout.multi_turn.format, narrow_view=self._narrow_view)
        self._narrow_view = made.narrow_view
        return made

    async def environment(self, name: str) -> OpenEnvironment:
        """The running environment.

        Raises:
            ConfigError: no such environment, or the lock does not match the live definitions.
            GatewayError: a required server did not start; the next call tries again.
        """
        if name not in self._open:
            environment = self.settings.apply(
                load_environment(name, self.settings.environments_dir), workers_per_node=self._workers_per_node
            )
            # Without one of those, what the policy is shown could not be called for as long as the gateway lives.
            locked = {entry.definition.server for entry in self._lock if entry.environment == name}
            gateway = await self._gateways.get(name, lambda: environment.requiring(locked))
            self._open[name] = OpenEnvironment(
                environment=environment,
                gateway=gateway,
                limits=limits_for(environment, self._rollout),
                tools=locked_tools(name, self._lock, gateway, path=self._rollout.multi_turn.tool_config_path),
            )
        return self._open[name]


class Worker:
    """What the process owns."""

    def __init__(self) -> None:
        self.gateways = Gateways()
        self.stock_sessions = StockSessions(self.gateways)
        self.runtime: Runtime | None = None
        self._ledger: Any = None

    async def report(self, entry: Entry) -> None:
        """Enter a finished trajectory into the job's ledger."""
        if self._ledger is None:
            self._ledger = start_ledger()
        await self._ledger.add.remote(entry)

    def runtime_for(self, config: DictConfig, lock: Sequence[LockEntry]) -> Runtime:
        """The runtime, made at the first call. Raises ConfigError for a wrong section of the configuration."""
        if self.runtime is None:
            self.runtime = Runtime(config, lock, self.gateways)
        return self.runtime

    async def close(self) -> None:
        """Stop the servers and close the journal."""
        await self.gateways.close()
        if self.runtime is not None:
            self.runtime.store.close()
            self.runtime = None
        self._ledger = None


WORKER = Worker()


def reward_parts(settings: Settings) -> tuple[str, ...]:
    """Part names of every environment in the directory, so that all samples of a run have the same keys."""
    parts: set[str] = set()
    for name in environment_names(settings.environments_dir):
        try:
            parts.update(load_environment(name, settings.environments_dir).reward.reported)
        except ConfigError as error:  # a file that no row names must not stop the run; one that is named will
            log.warning("environment file skipped", file=name, error=str(error))
    return tuple(sorted(parts))
