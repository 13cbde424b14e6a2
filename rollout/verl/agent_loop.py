"""`mcp_agent`: the agent loop that verl calls for every trajectory."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import structlog
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, ToolListWrap

from gateway.errors import ConfigError
from gateway.session import Session
from rollout.task import Origin, Task
from rollout.trace.record import Trace
from rollout.trajectory import roll_out
from rollout.types import Policy
from rollout.verl.ledger import Entry
from rollout.verl.manager import BATCH
from rollout.verl.output import is_withdrawn, to_output, withdrawn_output
from rollout.verl.policy import VerlPolicy
from rollout.verl.runtime import WORKER, Runtime
from rollout.verl.tokens import ContinuousTokens
from rollout.verl.tool import MCPTool

log = structlog.get_logger(__name__)


class MCPAgentLoop(AgentLoopBase):
    """Plays a row's task over MCP and gives verl the trace as a training sample.

    Registered through `rollout.agent.agent_loop_config_path`; verl builds one per trajectory and calls `run` once.
    """

    def __init__(self, *args: Any, tools: ToolListWrap | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pad_token_id: int = kwargs["tokenizer"].pad_token_id or 0
        self._lock = [tool.entry for tool in (tools.tools if tools else []) if isinstance(tool, MCPTool)]

    # verl's base class declares one output; its v1 worker takes a list as well.
    async def run(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, sampling_params: dict[str, Any], **row: Any
    ) -> AgentLoopOutput | list[AgentLoopOutput]:
        """Play one trajectory. Never raises: what fails is recorded and withdrawn.

        Returns:
            One sample; or what drops the trajectory from the batch: an empty list (v1), a masked token (v0).
        """
        trace: Trace | None = None
        failure: str | None = None
        parts: tuple[str, ...] = ()
        try:
            runtime = WORKER.runtime_for(self.config, self._lock)
            parts = runtime.reward_parts
            trace = await self._roll_out(runtime, sampling_params, row)
        except Exception as error:  # verl's boundary: an exception here would fail the whole GRPO group
            log.exception("trajectory could not be played", uid=row.get("uid"))
            failure = f"{type(error).__name__}: {error}"
        if self.config.trainer.use_v1:
            entry = Entry(validate=BATCH.get().validate, failure=failure) if trace is None else Entry.of(trace)
            await WORKER.report(entry)
        if trace is None or is_withdrawn(trace):
            return [] if self.config.trainer.use_v1 else withdrawn_output(self._pad_token_id, parts, trace)
        return to_output(trace, parts)

    async def _roll_out(self, runtime: Runtime, sampling_params: dict[str, Any], row: dict[str, Any]) -> Trace:
        task = Task.from_row(row)
        origin = self._origin(row)
        running = await runtime.environment(task.environment)
        tokens = ContinuousTokens(self.continuous_token_builder, self.tokenizer, self.rollout_config.multi_turn.format)
        trajectory = uuid4().hex

        async def policy_for(_: Session) -> Policy:
            return VerlPolicy(
                self.server_manager,
                trajectory,
                origin,
                sampling_params,
                stop_token_ids=tokens.stop_token_ids,
                seed_key=runtime.settings.sampling_seed_key,
            )

        return await roll_out(
            trajectory,
            task,
            origin,
            environment=running.environment,
            gateway=running.gateway,
            policy_for=policy_for,
            tokens=tokens,
            limits=running.limits,
            store=runtime.store,
            tools=selected_tools(running.tools, task),
        )

    def _origin(self, row: dict[str, Any]) -> Origin:
        batch = BATCH.get()
        return Origin(
            row=int(row.get("index", 0)),
            sample=int(row.get("session_id", 0)),
            step=batch.step,
            validate=batch.validate,
            uid=str(row.get("uid", "")),
        )


def selected_tools(locked: dict[str, dict[str, Any]] | None, task: Task) -> list[dict[str, Any]] | None:
    """What to render: the lock's schemas, narrowed to the row's selection; None leaves it to the session.

    Raises:
        ConfigError: the row names a tool that the lock does not have.
    """
    if locked is None or task.tools is None:
        return None if locked is None else list(locked.values())
    missing = [name for name in task.tools if name not in locked]
    if missing:
        raise ConfigError(f"tools {missing} are not in the lock", key="extra_info.mcp.tools")
    return [locked[name] for name in task.tools]
