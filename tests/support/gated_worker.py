"""Agent workers without a model: their prompts write samples as verl's worker does, and end when a gate lets them."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict

from rollout.verl.agent_workers import ATTEMPT, HoldsPrompts

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
