"""`mcp_agent`: the agent loop that verl calls for every trajectory."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import structlog
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, ToolListWrap

from gateway.errors import ConfigError, GatewayError
from gateway.leases.session import Session
from rollout.environment.task import Origin, Task
from rollout.errors import RolloutError
from rollout.loop.trajectory import roll_out
from rollout.tokens.images import DecodedImages
from rollout.trace.record import Trace
from rollout.types import Policy
from rollout.verl.ledger import Entry
from rollout.verl.manager import BATCH
from rollout.verl.output import to_outputs, withdrawn_output
from rollout.verl.policy import VerlPolicy
from rollout.verl.runtime import WORKER, OpenEnvironment, Runtime
from rollout.verl.tool import MCPTool

log = structlog.get_logger(__name__)


UNREADABLE = Task(environment="-", task="", seed=0, prompt=({"role": "user", "content": ""},))
"""Stands in the record of a row from which no task could be read."""


class MCPAgentLoop(AgentLoopBase):
    """Plays a row's task over MCP and gives verl the trace as a training sample.

    Registered through `rollout.agent.agent_loop_config_path`; verl builds one per trajectory and calls `run` once.
    """

    def __init__(self, *args: Any, tools: ToolListWrap | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pad_token_id: int = kwargs["tokenizer"].pad_token_id or 0
        end = kwargs["tokenizer"].eos_token_id
        self._end_ids: list[int] = [] if end is None else [end]
        self._lock = [tool.entry for tool in (tools.tools if tools else []) if isinstance(tool, MCPTool)]

    # verl's base class declares one output; its v1 worker takes a list as well.
    async def run(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, sampling_params: dict[str, Any], **row: Any
    ) -> AgentLoopOutput | list[AgentLoopOutput]:
        """Play one trajectory. Never raises: what fails is recorded, reported and withdrawn.

        Returns:
            One sample, or under v1 one for each segment of a context that dropped thinking; or what drops the
            trajectory from the batch: an empty list (v1), a masked token (v0).
        """
        trace = Trace.begin(uuid4().hex, UNREADABLE, self._origin(row))
        parts: tuple[str, ...] = ()
        outputs: list[AgentLoopOutput] = []
        try:
            runtime = WORKER.runtime_for(self.config, self._lock)
            parts = runtime.reward_parts
            await self._play(runtime, trace, sampling_params, row)
            if not trace.is_withdrawn:
                outputs = to_outputs(trace, parts, pad_token_id=self._pad_token_id)
        except Exception as error:  # verl's boundary: an exception here would fail the whole GRPO group
            log.exception("trajectory could not be played", trajectory=trace.id, uid=trace.origin.uid)
            is_known = isinstance(error, ConfigError | GatewayError | RolloutError)
            trace.fail(error.code if is_known else "internal_error", f"{type(error).__name__}: {error}")
        await self._report(trace)
        if outputs:
            return outputs[0] if len(outputs) == 1 else outputs
        return [] if self.config.trainer.use_v1 else withdrawn_output(trace, parts, pad_token_id=self._pad_token_id)

    async def _report(self, trace: Trace) -> None:
        """Count the trajectory, whatever became of it: what nobody counts could vanish from training unseen."""
        if not self.config.trainer.use_v1:
            return
        try:
            await WORKER.report(Entry.of(trace))
        except Exception:  # verl's boundary; without its ledger the trainer stops at the end of the batch
            log.exception("trajectory could not be reported", trajectory=trace.id, uid=trace.origin.uid)

    async def _play(self, runtime: Runtime, trace: Trace, sampling_params: dict[str, Any], row: dict[str, Any]) -> None:
        """Fill the trajectory's trace; it is on disk then, whatever became of the trajectory."""
        try:
            task = Task.from_row(row)
            trace.take(task)
            running = await runtime.environment(task.environment)
            tools = selected_tools(running.tools, task)
        except (ConfigError, GatewayError) as error:
            log.warning("trajectory could not begin", trajectory=trace.id, code=error.code, error=str(error))
            trace.fail(error.code, str(error))
            runtime.store.append(trace)
            return
        # v0 does not say which sibling this is, and siblings with one seed would all say the same.
        seed_key = runtime.settings.sampling_seed_key if "session_id" in row else None
        await self._roll_out(runtime, running, trace, tools, sampling_params, seed_key)

    async def _roll_out(
        self,
        runtime: Runtime,
        running: OpenEnvironment,
        trace: Trace,
        tools: list[dict[str, Any]] | None,
        sampling_params: dict[str, Any],
        seed_key: str | None,
    ) -> None:
        tokens = runtime.tokens(self.continuous_token_builder, self.tokenizer)

        images = DecodedImages(trace.messages)

        async def policy_for(_: Session) -> Policy:
            return VerlPolicy(
                self.server_manager,
                trace.id,
                trace.origin,
                sampling_params,
                stop_token_ids=tokens.stop_token_ids,
                seed_key=seed_key,
                images=lambda: images.first(trace.images),
                end_ids=self._end_ids,
            )

        await roll_out(
            trace,
            environment=running.environment,
            gateway=running.gateway,
            policy_for=policy_for,
            tokens=tokens,
            limits=running.limits,
            store=runtime.store,
            tools=tools,
        )

    def _origin(self, row: dict[str, Any]) -> Origin:
        batch = BATCH.get()
        return Origin(
            row=int(row.get("index") or 0),
            sample=int(row.get("session_id", 0)),
            step=batch.step if batch.step >= 0 else int(row.get("global_steps", -1)),
            validate=batch.validate,
            uid=str(row.get("uid", "")),
            engine="verl",
        )


def selected_tools(locked: dict[str, dict[str, Any]] | None, task: Task) -> list[dict[str, Any]] | None:
    """What to render: the lock's schemas, narrowed to the row's selection; None leaves it to the session.

    Raises:
        ConfigError: the row names a tool that the lock does not have.
    """
    if locked is None:
        return None
    if missing := [name for name in task.tools or () if name not in locked]:
        raise ConfigError(f"tools {missing} are not in the lock", key="extra_info.mcp.tools")
    return [schema for name, schema in locked.items() if task.tools is None or name in task.tools]
