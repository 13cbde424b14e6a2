"""Prompts of agent workers whose process dies, through Ray, TransferQueue and verl's replay buffer."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from omegaconf import OmegaConf

pytestmark = [pytest.mark.verl, pytest.mark.usefixtures("imported_verl", "transfer_queue")]

SAMPLES = 2


@pytest.fixture
def gate() -> Any:
    """An actor that the workers tell what they play, and that lets their prompts end."""
    import asyncio

    import ray

    class Gate:
        def __init__(self) -> None:
            self.played: list[tuple[str, int, int]] = []
            self.changed = asyncio.Condition()
            self.opened: set[str] = set()

        async def pass_(self, uid: str, attempt: int, process: int) -> None:
            async with self.changed:
                self.played.append((uid, attempt, process))
                self.changed.notify_all()
                await self.changed.wait_for(lambda: uid in self.opened)

        async def open(self, *uids: str) -> None:
            async with self.changed:
                self.opened.update(uids)
                self.changed.notify_all()

        async def seen(self, count: int) -> list[tuple[str, int, int]]:
            """What was played, once that is so many prompts."""
            async with self.changed:
                await asyncio.wait_for(self.changed.wait_for(lambda: len(self.played) >= count), 60)
            return self.played

    return ray.remote(num_cpus=0)(Gate).remote()


def worker_class(gate: Any) -> Any:
    """As verl's worker does, without a model: it writes two samples, and the status of the prompt after the gate."""
    import asyncio

    import ray

    from rollout.verl.held_prompts import ATTEMPT, HoldsPrompts

    class Plays:
        def __init__(self) -> None:
            import transfer_queue as tq

            tq.init()
            self.tasks: set[asyncio.Task[None]] = set()

        async def generate_sequences(self, batch: Any) -> None:
            for uid in batch["uid"]:
                self.tasks.add(asyncio.create_task(self._run_prompt({"uid": uid})))

        async def _run_prompt(self, prompt: dict[str, Any]) -> None:
            import torch
            import transfer_queue as tq
            from verl.utils.tensordict_utils import list_of_dict_to_tensordict

            uid = prompt["uid"]
            await tq.async_kv_put(key=uid, partition_id="train", tag={"status": "running"})
            for session in range(SAMPLES):
                fields = [{"uid": uid, "rm_scores": torch.tensor([float(ATTEMPT.get())]), "responses": torch.ones(1)}]
                tag = {"status": "success", "seq_len": 1}
                await tq.async_kv_batch_put(
                    keys=[f"{uid}_{session}_0"],
                    fields=list_of_dict_to_tensordict(fields),
                    tags=[tag],
                    partition_id="train",
                )
            await gate.pass_.remote(uid, ATTEMPT.get(), os.getpid())
            await tq.async_kv_put(key=uid, partition_id="train", tag={"status": "finished"})

    class Worker(HoldsPrompts, Plays):
        """The mixin under test."""

    return ray.remote(num_cpus=0, max_restarts=-1)(Worker)


class Crew:
    """Two workers, and what `AgentWorkers` asks its callbacks."""

    def __init__(self, gate: Any) -> None:
        from rollout.verl.agent_workers import AgentWorkers

        kind = worker_class(gate)
        self.begun_again: list[str] = []
        self.given_up: list[tuple[str, int]] = []
        self.replaced = 0
        self.workers = AgentWorkers(
            [kind.remote() for _ in range(2)],
            restart_timeout_s=60,
            begin_again=self.begun_again.extend,
            give_up=lambda prompt, attempt: self.given_up.append((next(iter(prompt["uid"])), attempt)),
            replaced=self._count,
        )

    def _count(self) -> None:
        self.replaced += 1

    def issue(self, *uids: str) -> None:
        """As verl's trainer submits a batch."""
        import numpy as np
        import transfer_queue as tq
        from verl.utils.tensordict_utils import get_tensordict

        tags = [{"is_prompt": True, "status": "pending", "global_steps": 1} for _ in uids]
        tq.kv_batch_put(keys=list(uids), partition_id="train", tags=tags)
        self.workers.issue(get_tensordict({"uid": np.array(uids, dtype=object)}))


@pytest.fixture
def crew(gate: Any) -> Iterator[Crew]:
    crew = Crew(gate)
    yield crew
    crew.workers.close()


def sample(groups: int) -> list[str]:
    """The keys of a batch, for which verl's trainer waits."""
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

    buffer = ReplayBuffer("sync", OmegaConf.create({}), 8, "drop", OmegaConf.create({}), poll_interval=0.05)
    return sorted(buffer.sample(1, "train", groups)[0].keys)


def kill(played: list[tuple[str, int, int]], uid: str) -> set[str]:
    """End the process that plays this prompt. Returns all prompts that it was playing."""
    process = [process for name, _, process in played if name == uid][-1]
    os.kill(process, signal.SIGKILL)
    return {name for name, _, each in played if each == process}


def test_the_prompts_of_a_dead_worker_and_no_others_are_played_again(crew: Crew, gate: Any, ray_get: Any) -> None:
    crew.issue("a", "b", "c", "d")
    played = ray_get(gate.seen.remote(4))
    assert {attempt for _, attempt, _ in played} == {0} and len({process for *_, process in played}) == 2
    ray_get(gate.open.remote("b"))
    died = kill(played, "d")
    assert len(died) == 2 and "b" not in died
    again = ray_get(gate.seen.remote(6))[4:]
    assert {(uid, attempt) for uid, attempt, _ in again} == {(uid, 1) for uid in died}
    assert {process for *_, process in again}.isdisjoint({process for *_, process in played})
    ray_get(gate.open.remote("a", "c", "d"))
    # All four groups, each with the samples of one attempt.
    assert sample(4) == sorted(f"{uid}_{session}_0" for uid in "abcd" for session in range(SAMPLES))
    assert sorted(crew.begun_again) == sorted(died) and crew.given_up == [] and crew.replaced == 1
    # The worker is as good as before.
    crew.issue("e", "f")
    ray_get(gate.open.remote("e", "f"))
    assert len(sample(2)) == 2 * SAMPLES and len(ray_get(gate.seen.remote(8))) == 8


def test_a_prompt_whose_worker_dies_again_is_given_up(crew: Crew, gate: Any, ray_get: Any) -> None:
    crew.issue("a", "b")
    kill(ray_get(gate.seen.remote(2)), "a")
    kill(ray_get(gate.seen.remote(3)), "a")
    ray_get(gate.open.remote("a", "b"))
    # verl takes a failed group into the batch, and the samples that it had written are gone.
    assert sample(2) == [f"b_{session}_0" for session in range(SAMPLES)]
    assert crew.given_up == [("a", 1)] and crew.replaced == 2


@pytest.fixture
def ray_get() -> Callable[[Any], Any]:
    import ray

    return lambda reference: ray.get(reference, timeout=60)
