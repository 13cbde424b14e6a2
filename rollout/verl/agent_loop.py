"""The agent loop `mcp_agent`, and the worker and manager that verl's v1 trainer runs it with."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextvars import ContextVar
from hashlib import sha256
from typing import Any
from uuid import uuid4

import ray
import structlog
import torch
from omegaconf import DictConfig
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tensordict import TensorDict
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, ToolListWrap
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ
from verl.utils.tensordict_utils import assign_non_tensor_stack

from mcp_rollout.gateway.errors import ConfigError, GatewayError
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.gateway.types import canonical_json
from mcp_rollout.rollout.environment.reward_config import RewardConfig
from mcp_rollout.rollout.environment.task import UNREADABLE
from mcp_rollout.rollout.errors import RolloutError
from mcp_rollout.rollout.loop.group import Group
from mcp_rollout.rollout.loop.limits import cancellations
from mcp_rollout.rollout.loop.trajectory import roll_out
from mcp_rollout.rollout.tokens.images import DecodedImages
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.training.statistics import TrajectoryStatistics
from mcp_rollout.rollout.types import Policy
from mcp_rollout.rollout.verl.agent_workers import ATTEMPT, AgentWorkers, HoldsPrompts
from mcp_rollout.rollout.verl.batch_statistics import statistics_collector
from mcp_rollout.rollout.verl.lost_prompts import LostPrompts
from mcp_rollout.rollout.verl.origin import Batch, origin_of
from mcp_rollout.rollout.verl.output import to_outputs, withdrawn_output
from mcp_rollout.rollout.verl.policy import VerlPolicy
from mcp_rollout.rollout.verl.reward_loop import VerlReward
from mcp_rollout.rollout.verl.runtime import WORKER, Runtime
from mcp_rollout.rollout.verl.settings import Settings
from mcp_rollout.rollout.verl.shards import held_director
from mcp_rollout.rollout.verl.tool import MCPTool

log = structlog.get_logger(__name__)


_COPY = "mcp_copy"
"""Column of the prompts that the manager issues: `Batch.copy`."""
_BATCH: ContextVar[Batch] = ContextVar("mcp_rollout_batch", default=Batch())  # noqa: B039 - frozen


class MCPAgentLoop(AgentLoopBase):
    """Plays a row's task over MCP and returns the trace to verl as training samples.

    Registered through `rollout.agent.agent_loop_config_path`; verl builds one per trajectory and calls `run` once.
    """

    def __init__(self, *args: Any, tools: ToolListWrap | None = None, **kwargs: Any) -> None:
        super().__init__(*args, tools=tools, **kwargs)  # verl's base class ignores it, its `ToolAgentLoop` does not
        self._pad_token_id: int = kwargs["tokenizer"].pad_token_id or 0
        end = kwargs["tokenizer"].eos_token_id
        self._end_ids: list[int] = [] if end is None else [end]
        self._verls_reward: VerlReward | None = None
        self._reward = RewardConfig()  # until the environment is known
        self._lock = [tool.entry for tool in (tools.tools if tools else []) if isinstance(tool, MCPTool)]

    # verl's base class declares one output; its v1 worker accepts a list as well.
    async def run(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, sampling_params: dict[str, Any], **row: Any
    ) -> AgentLoopOutput | list[AgentLoopOutput]:
        """Play one trajectory. A failure is recorded, reported, and the trajectory withdrawn.

        Never raises but for a cancellation from outside.

        Returns:
            One sample, or under v1 one for each segment of the context (`rollout.training.samples`). For a
            withdrawn trajectory, what keeps it out of training: an empty list (v1) or a masked token (v0).
        """
        trace = Trace.begin(uuid4().hex, UNREADABLE, origin_of(row, _BATCH.get()))
        parts: tuple[str, ...] = ()
        outputs: list[AgentLoopOutput] = []
        try:
            runtime = WORKER.runtime_for(self.config, self._lock)
            parts = runtime.reward_parts
            await self._play(runtime, trace, sampling_params, row)
            if not trace.is_withdrawn:
                outputs = self._outputs(trace, parts)
                # verl copies those of the last output to the others.
                outputs[-1].extra_fields["reward_extra_info"] |= self._verls_reward.extra if self._verls_reward else {}
        except (Exception, asyncio.CancelledError) as error:
            # verl's boundary: an exception here would fail the whole GRPO group, as would a CancelledError that
            # something raised by itself.
            if isinstance(error, asyncio.CancelledError) and cancellations():
                raise
            log.exception("trajectory could not be played", trajectory=trace.id, uid=trace.origin.uid)
            is_known = isinstance(error, ConfigError | GatewayError | RolloutError)
            trace.fail(error.code if is_known else "internal_error", f"{type(error).__name__}: {error}")
        await self._report(trace)
        if outputs:
            return outputs[0] if len(outputs) == 1 else outputs
        return [] if self.config.trainer.use_v1 else withdrawn_output(trace, parts, pad_token_id=self._pad_token_id)

    def _outputs(self, trace: Trace, parts: tuple[str, ...]) -> list[AgentLoopOutput]:
        """The training samples of a trajectory that counts."""
        return to_outputs(trace, parts, pad_token_id=self._pad_token_id)

    def _trainers_reward(self, runtime: Runtime, row: dict[str, Any]) -> VerlReward | None:
        """verl's own reward of the trajectory, where the run has one."""
        if not runtime.settings.has_custom_reward:
            return None
        compute_score = _BATCH.get().compute_score
        if compute_score is None:
            raise ConfigError("verl's reward is computed by our agent loop worker, which this run does not have")
        timeout_s = runtime.settings.custom_reward_timeout_s
        end = self._end_ids[0] if self._end_ids else self._pad_token_id
        self._verls_reward = VerlReward(compute_score=compute_score, row=row, timeout_s=timeout_s, end_id=end)
        return self._verls_reward

    async def _report(self, trace: Trace) -> None:
        """Report every outcome: a withdrawn trajectory that is not counted would disappear from training unnoticed."""
        if not self.config.trainer.use_v1:
            return
        try:
            await WORKER.report(TrajectoryStatistics.of(trace, self._reward))
        except Exception:  # verl's boundary; if the collector is gone, the trainer stops at the end of the batch
            log.exception("trajectory could not be reported", trajectory=trace.id, uid=trace.origin.uid)

    async def _play(self, runtime: Runtime, trace: Trace, sampling_params: dict[str, Any], row: dict[str, Any]) -> None:
        """Play the trajectory into its trace, which is on disk when this returns, whatever the outcome."""
        playable = await runtime.environments.begin(trace, row)
        if playable is None:
            return
        running = playable.running
        self._reward = running.environment.reward
        tokens = runtime.tokens(self.continuous_token_builder, self.tokenizer)
        images = DecodedImages(trace.messages)
        # v0 does not say which sibling this is: all siblings would have one request id, and sample the same tokens.
        is_identified = "session_id" in row
        is_deterministic = is_identified and bool(self.config.actor_rollout_ref.rollout.full_determinism)
        seed = _BATCH.get().seed(runtime.settings.seed)

        async def policy_for(_: Session) -> Policy:
            if runtime.recorded:
                return runtime.recorded.policy(trace.task, trace.origin)
            return VerlPolicy(
                self.server_manager,
                reproducible_id(trace, seed) if is_deterministic else trace.id,
                trace.origin,
                sampling_params,
                stop_token_ids=tokens.stop_token_ids,
                seed_key=runtime.settings.sampling_seed_key if is_identified else None,
                seed=seed,
                images=lambda: images.first(trace.images),
                end_ids=self._end_ids,
                engine_has_id=is_deterministic,
            )

        # v0 takes one sample of a trajectory, and validation measures the policy as it will be used.
        is_chain = trace.origin.validate_ or not self.config.trainer.use_v1
        await roll_out(
            trace,
            environment=running.environment.as_chain if is_chain else running.environment,
            gateway=running.gateway,
            policy_for=policy_for,
            tokens=tokens,
            limits=running.limits,
            store=runtime.store,
            tools=playable.tools,
            group=_BATCH.get().group,
            trainers_reward=self._trainers_reward(runtime, row),
            clock=WORKER.clock,
        )


def reproducible_id(trace: Trace, seed: int) -> str:
    """A request id that is equal in every run of this seed for the same trajectory, and differs from its siblings'.

    Under `full_determinism` verl routes a request by its id and passes the id on to the engine.
    """
    task, origin = trace.task, trace.origin
    identity = [task.environment, task.task, task.seed, origin.row, origin.sample, origin.step, origin.validate_]
    if origin.attempt:  # the engine may still know the request of the attempt before
        identity.append(origin.attempt)
    if seed:
        identity.append(f"seed {seed}")
    return f"mcp-{sha256(canonical_json(identity).encode()).hexdigest()[:32]}"


# verl exports the worker as a Ray actor class; only the plain class inside can be subclassed.
_Worker: Any = getattr(AgentLoopWorkerTQ, "__ray_metadata__").modified_class  # noqa: B009 - no static type has it


class MCPAgentLoopWorker(HoldsPrompts, _Worker):
    """verl's worker, which gives the agent loop what `run` does not receive: step, validate flag, attempt and siblings.

    verl plays all siblings of a row as tasks of one worker, so they can grow a tree in its process.
    """

    def __init__(self, config: DictConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self._seed = Settings.of(config).seed

    async def _run_prompt(
        self, prompt: dict[str, Any], sampling_params: dict[str, Any], trajectory: dict[str, Any], **options: Any
    ) -> None:
        validate = bool(trajectory["validate"])
        rollout = self.config.actor_rollout_ref.rollout
        # As verl does: a row may have its own number.
        leaves = prompt.get("__rollout_n__", rollout.val_kwargs.n if validate else rollout.n)
        # The tasks that verl starts below inherit the context.
        group = Group(leaves, str(prompt["uid"]), seed=self._seed, clock=WORKER.clock)
        batch = Batch(
            step=int(trajectory["step"]),
            validate=validate,
            attempt=ATTEMPT.get(),
            copy=prompt.pop(_COPY, 0),
            group=group,
            compute_score=self._compute_score,
        )
        _BATCH.set(batch)
        await super()._run_prompt(prompt, sampling_params, trajectory, **options)

    async def _run_agent_loop(self, sampling_params: dict[str, Any], trajectory: dict[str, Any], **row: Any) -> None:
        group = _BATCH.get().group
        try:
            await super()._run_agent_loop(sampling_params, trajectory, **row)
        finally:
            # Also where the trajectory never began: its siblings may wait for it.
            if group is not None:
                group.leave(int(row["session_id"]))

    async def engine_held(self, is_held: bool) -> None:
        """The trainer has taken the engine, or given it back: the clocks of trajectories stand still meanwhile."""
        if is_held:
            WORKER.clock.stop()
        else:
            WORKER.clock.start()

    def _compute_multi_modal_inputs(self, output: AgentLoopOutput, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        # verl has the processor read the decoded ids, where a text that spells a placeholder would be one more image.
        if self.processor is not None:
            control = torch.tensor(list(self.tokenizer.added_tokens_decoder))
            text = self.tokenizer.encode("\n", add_special_tokens=False)[-1]
            input_ids = torch.where(torch.isin(input_ids, control), input_ids, text)
        return super()._compute_multi_modal_inputs(output, input_ids)


class MCPAgentLoopManager(AgentLoopManagerTQ):
    """verl's manager with our worker class and the job's statistics collector (`agent_loop_manager_class`).

    A worker whose process dies is replaced, and its prompts are issued once more.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # After the base class, which overwrites the attribute with its own worker class.
        self.agent_loop_workers_class = ray.remote(MCPAgentLoopWorker)
        self.statistics_collector = statistics_collector()  # the handle keeps the actor alive as long as the job
        self.shards = held_director(self.config)
        self.attempt = 0
        """Of the prompts that are issued next."""
        self._copies: Counter[tuple[bool, str]] = Counter()  # rows that were issued in this step
        self._step = -1

    async def _init_agent_loop_workers(self) -> None:
        await super()._init_agent_loop_workers()
        collector = self.statistics_collector
        self.workers = AgentWorkers(
            self.agent_loop_workers,
            replacement=self._replacement,
            start_timeout_s=Settings.of(self.config).worker_start_timeout_s,
            begin_again=lambda uids: ray.get(collector.forget.remote(uids)),
            give_up=LostPrompts(self.config).give_up,
            replaced=lambda: ray.get(collector.worker_replaced.remote()),
        )

    def _replacement(self, number: int) -> Any:
        """A worker as verl makes them, on a node that is alive."""
        nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0]
        options = self.agent_loop_workers_class.options(
            name=f"agent_loop_worker_{number}_{uuid4().hex[:8]}",
            scheduling_strategy=NodeAffinitySchedulingStrategy(nodes[number % len(nodes)], soft=True),
        )
        made = options.remote(self.config, self.llm_client, self.teacher_client, self.reward_loop_worker_handles)
        self.agent_loop_workers[number] = made
        return made

    def engine_held(self, is_held: bool) -> None:
        """Tell all workers that the trainer takes the engine, or has given it back; without waiting for them."""
        for worker in self.agent_loop_workers:
            worker.engine_held.remote(is_held)

    def generate_sequences(self, prompts: TensorDict) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        if (step := int(prompts["global_steps"])) != self._step:
            self._step, self._copies = step, Counter()
        copies: list[int] = []
        for row in prompts["index"]:
            key = "validate" in prompts, str(row)
            copies.append(self._copies[key])
            self._copies[key] += 1
        assign_non_tensor_stack(prompts, _COPY, copies)
        self.workers.issue(prompts, self.attempt)
