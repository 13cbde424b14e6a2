"""Agent workers without a model: their prompts write samples as verl's worker does, and end when a gate lets them."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.utils.tensordict_utils import get_tensordict

from mcp_rollout.rollout.verl.agent_workers import ATTEMPT, AgentWorkers, HoldsPrompts

ROOT = Path(__file__).parents[2]
IMPORTS = {"env_vars": {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "support")))}}
"""So that Ray's processes can import what is tested, and this module."""
SAMPLES = 2


class Gate:
    """An actor that the workers tell what they play, and that lets their prompts end."""

    def __init__(self) -> None:
        self._played: list[tuple[str, int, int]] = []
        self._changed = asyncio.Condition()
        self._opened: set[str] = set()

    async def pass_(self, uid: str, attempt: int, process: int) -> None:
        async with self._changed:
            self._played.append((uid, attempt, process))
            self._changed.notify_all()
            await self._changed.wait_for(lambda: uid in self._opened)

    async def open(self, *uids: str) -> None:
        async with self._changed:
            self._opened.update(uids)
            self._changed.notify_all()

    async def seen(self, count: int) -> list[tuple[str, int, int]]:
        """Prompt, attempt and process of all that was played, once that is so much."""
        async with self._changed:
            await asyncio.wait_for(self._changed.wait_for(lambda: len(self._played) >= count), 60)
        return self._played


class _Plays:
    def __init__(self, gate: Any) -> None:
        tq.init()
        self._gate = gate
        self._tasks: set[asyncio.Task[None]] = set()

    async def generate_sequences(self, batch: Any) -> Any:
        for uid in batch["uid"]:
            self._tasks.add(asyncio.create_task(self._run_prompt({"uid": uid})))

    async def _run_prompt(self, prompt: dict[str, Any]) -> None:
        uid = prompt["uid"]
        await tq.async_kv_put(key=uid, partition_id="train", tag={"status": "running"})
        keys = [f"{uid}_{session}_0" for session in range(SAMPLES)]
        fields = TensorDict({"responses": torch.ones(SAMPLES, 1)}, batch_size=SAMPLES)
        tags = [{"status": "success", "seq_len": 1}] * SAMPLES
        await tq.async_kv_batch_put(keys=keys, fields=fields, tags=tags, partition_id="train")
        await self._gate.pass_.remote(uid, ATTEMPT.get(), os.getpid())
        await tq.async_kv_put(key=uid, partition_id="train", tag={"status": "finished"})


class GatedWorker(HoldsPrompts, _Plays):
    """The mixin under test, over a stand-in for verl's worker, which needs a model."""


def started_gate(**options: Any) -> Any:
    return ray.remote(num_cpus=0, runtime_env=IMPORTS, **options)(Gate).remote()


class Crew:
    """Two workers, and what `AgentWorkers` asks its callbacks."""

    def __init__(
        self, gate: Any, *, first: dict[str, Any] | None = None, start_timeout_s: float = 240, **options: Any
    ) -> None:
        """With options of Ray's for the workers; those for the first of the two may be others."""
        self.kind = kind = ray.remote(num_cpus=0, runtime_env=IMPORTS, **options)(GatedWorker)
        self.gate = gate
        self.begun_again: list[str] = []
        self.given_up: list[tuple[str, int]] = []
        self.replaced = 0
        self.was_replaced = threading.Event()
        self.workers = AgentWorkers(
            [kind.options(**(first or {})).remote(gate), kind.remote(gate)],
            replacement=self.replacement,
            start_timeout_s=start_timeout_s,
            begin_again=self.begun_again.extend,
            give_up=lambda prompt, attempt: self.given_up.append((next(iter(prompt["uid"])), attempt)),
            replaced=self._count,
        )

    def replacement(self, number: int) -> Any:
        return self.kind.remote(self.gate)

    def _count(self) -> None:
        self.replaced += 1
        self.was_replaced.set()

    def issue(self, *uids: str) -> None:
        """As verl's trainer submits a batch."""
        tags = [{"is_prompt": True, "status": "pending", "global_steps": 1} for _ in uids]
        tq.kv_batch_put(keys=list(uids), partition_id="train", tags=tags)
        self.workers.issue(get_tensordict({"uid": list(uids)}))


def sample(groups: int) -> list[str]:
    """The keys of a batch, for which verl's trainer waits."""
    buffer = ReplayBuffer("sync", OmegaConf.create({}), 8, "drop", OmegaConf.create({}), poll_interval=0.05)
    return sorted(buffer.sample(1, "train", groups)[0].keys)
