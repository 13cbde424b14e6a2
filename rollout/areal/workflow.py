# pyright: basic, reportMissingImports=false
"""AReaL's `RolloutWorkflow` that plays a row's task over MCP."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from numbers import Integral
from typing import Any
from uuid import uuid4

import structlog
import torch
from areal.api import InferenceEngine, RolloutWorkflow
from areal.api.cli_args import GenerationHyperparameters
from areal.infra import workflow_context
from areal.utils import stats_tracker

from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.rollout.areal.groups import Groups
from mcp_rollout.rollout.areal.policy import ArealPolicy
from mcp_rollout.rollout.areal.runtime import PROCESS, Runtime
from mcp_rollout.rollout.areal.samples import group_advantages, samples_of, to_tensors
from mcp_rollout.rollout.areal.settings import Settings
from mcp_rollout.rollout.environment.reward_config import RewardConfig
from mcp_rollout.rollout.environment.task import UNREADABLE, Origin
from mcp_rollout.rollout.loop.limits import cancellations
from mcp_rollout.rollout.loop.trajectory import roll_out
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.training.statistics import TrajectoryStatistics
from mcp_rollout.rollout.types import Policy

log = structlog.get_logger(__name__)


class MCPWorkflow(RolloutWorkflow):
    """Plays a row's task over MCP and returns its training samples to AReaL.

    AReaL makes a group of `gconfig.n_samples` calls with the same data. The calls find each other, and each returns its
    own rows, with the advantage in its group for a reward.

    Arguments are plain JSON: with a single controller, they travel to rollout processes, which build a workflow
    for each group. `rollout.areal.config.workflow_arguments` makes them from AReaL's configuration.

    Args:
        model: the directory of the model's tokenizer.
        gconfig: AReaL's sampling parameters.
        mcp: our section of AReaL's configuration.
        seed: AReaL's seed of the run, for the run record: its servers sample with it.
        processes: rollout processes of a node, which share its sessions.
        window: number of trajectories of which `max_failed_share` may be withdrawn.
    """

    def __init__(
        self,
        *,
        model: str,
        gconfig: dict[str, Any],
        mcp: dict[str, Any],
        seed: int = 1,
        processes: int = 1,
        window: int = 64,
    ) -> None:
        self._model, self._settings = model, Settings.model_validate(mcp)
        self._shared = {
            "model": model,
            "gconfig": gconfig,
            "seed": seed,
            "processes": processes,
            "window": window,
        }
        tokens = PROCESS.tokens(model, self._settings)
        sampling = GenerationHyperparameters(**gconfig)
        stops = {*sampling.stop_token_ids, *tokens.stop_token_ids, *tokens.end_token_ids}
        self._gconfig = sampling.new(stop_token_ids=sorted(stops))
        self._groups: Groups[Trace] = Groups()

    async def arun_episode(self, engine: InferenceEngine, data: Mapping[str, Any]) -> dict[str, Any] | None:
        """Play one trajectory. Never raises but for a cancellation from outside.

        Returns:
            A row for each of its segments with a token in the loss; None for a withdrawn trajectory, and for one whose
            group is withdrawn.
        """
        context = workflow_context.get()
        # Before anything else is awaited: AReaL starts siblings together, and only so are they together here.
        group, sample = await self._groups.join((context.is_eval, context.task_id, id(data)))
        trace = Trace.begin(uuid4().hex, UNREADABLE, _origin(engine, data, sample))
        policy = ArealPolicy(engine, self._gconfig, trace.id)
        try:
            runtime = PROCESS.runtime(self._settings, **self._shared)
            reward = await self._play(runtime, trace, policy, data)
            self._report(runtime, trace, reward)
        except asyncio.CancelledError as error:
            # AReaL ends its tasks with its engine. Any other cancellation is a fault in this trajectory: AReaL would
            # count the trajectory as running forever, and start one less at a time.
            if cancellations():
                raise
            trace.fail("cancelled", f"{type(error).__name__}: {error}")
        except Exception as error:  # AReaL's boundary: an exception here would withdraw the whole group
            log.exception("trajectory could not be played", trajectory=trace.id)
            trace.fail("internal_error", f"{type(error).__name__}: {error}")
        finally:
            group.hand_in(sample, trace)
        return self._rows(sample, await group.results())

    async def _play(self, runtime: Runtime, trace: Trace, policy: ArealPolicy, data: Mapping[str, Any]) -> RewardConfig:
        """Play the trajectory into its trace, which is on disk when this returns, whatever the outcome.

        Returns:
            The reward of its environment; the default one where that could not be read.
        """
        playable = await runtime.environments.begin(trace, data)
        if playable is None:
            return RewardConfig()
        running = playable.running

        async def policy_for(_: Session) -> Policy:
            return runtime.recorded.policy(trace.task, trace.origin) if runtime.recorded else policy

        await roll_out(
            trace,
            environment=running.environment.as_chain,
            gateway=running.gateway,
            policy_for=policy_for,
            tokens=PROCESS.tokens(self._model, self._settings),
            limits=running.limits,
            store=runtime.store,
            tools=playable.tools,
        )
        return running.environment.reward

    def _report(self, runtime: Runtime, trace: Trace, reward: RewardConfig) -> None:
        """Report every outcome: a withdrawn trajectory that is not counted would disappear from training unnoticed."""
        trajectory = TrajectoryStatistics.of(trace, reward)
        values = trajectory.values | ({"reward": trace.reward.score} if trace.reward and not trace.is_withdrawn else {})
        stats_tracker.get(workflow_context.stat_scope()).scalar(**values)
        runtime.watch.add(trajectory)

    def _rows(self, own: int, siblings: list[Trace]) -> dict[str, torch.Tensor] | None:
        """The trajectory's rows, as its group allows."""
        kept = [number for number, trace in enumerate(siblings) if not trace.is_withdrawn]
        if own not in kept:
            return None
        samples, reward = samples_of(siblings[own]), _score(siblings[own])
        if not workflow_context.get().is_eval:
            if len(kept) < min(self._settings.min_group_size, len(siblings)):
                return None
            reward = group_advantages([_score(siblings[number]) for number in kept])[kept.index(own)]
        return to_tensors(samples, [reward] * len(samples)) if samples else None


def _score(trace: Trace) -> float:
    return trace.reward.score if trace.reward else 0.0


def _origin(engine: InferenceEngine, data: Mapping[str, Any], sample: int) -> Origin:
    """The trajectory's origin. An index that is not an integer counts as 0 here; `Task.from_row` refuses it."""
    context = workflow_context.get()
    extra = data.get("extra_info")
    index = extra.get("index") if isinstance(extra, Mapping) else None
    return Origin(
        row=int(index) if isinstance(index, Integral) else 0,
        sample=sample,
        step=engine.get_version(),
        validate=context.is_eval,
        split="validation" if context.is_eval else "train",
        uid=str(context.task_id),
        engine="areal",
    )
