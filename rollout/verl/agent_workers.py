"""Prompts of a worker whose process died: workers say which they hold, the manager issues the lost ones once more.

verl dispatches a prompt and forgets it; its replay buffer polls TransferQueue until the prompt has ended. The prompts
of a dead worker stay "running" there, so the trainer would wait forever. `AgentWorkers` replaces the worker and
compares what it issued with what workers hold. Ray's own restart (`max_restarts`) does not help: it needs the arguments
that the worker was made with, and verl's configuration is so large that Ray has deleted the object by then.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

import ray
import structlog
import transfer_queue as tq
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayError, RayTaskError
from tensordict import TensorDict
from verl.utils.tensordict_utils import index_select_tensor_dict

from mcp_rollout.gateway.logs import configure_logs_by_default

log = structlog.get_logger(__name__)

MOST_ATTEMPTS = 2
"""How often a job issues a prompt: one that makes its worker's memory overflow would end every further worker.

Attempts of a job that resumed one from a checkpoint begin at the next multiple of this."""
_POLL_S = 1.0
ATTEMPT: ContextVar[int] = ContextVar("mcp_rollout_attempt", default=0)
"""How often the prompt that the current task plays was issued before."""


class HoldsPrompts:
    """Mixin before verl's `AgentLoopWorkerTQ`: accounts for the prompts that the worker has accepted.

    A prompt ends after its terminal status is in TransferQueue. So one that the worker does not hold and that is not
    terminal there is not played at all: the process that accepted it is gone, or never received it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._held: set[str] = set()

    async def generate_sequences(self, batch: Any, attempt: int = 0) -> None:
        """Accept the prompts, as verl's worker does; they were issued `attempt` times before."""
        self._held.update(str(uid) for uid in batch["uid"])
        ATTEMPT.set(attempt)  # the tasks that verl starts inherit the context
        await super().generate_sequences(batch)  # type: ignore[misc]

    async def _run_prompt(self, prompt: dict[str, Any], *args: Any, **options: Any) -> None:
        uid = str(prompt["uid"])
        try:
            await super()._run_prompt(prompt, *args, **options)  # type: ignore[misc]
        finally:
            self._held.discard(uid)

    async def held(self) -> frozenset[str]:
        """The prompts that were accepted and have not ended."""
        return frozenset(self._held)

    async def until_end(self) -> None:
        """Never return: Ray ends the call with an error when the process dies."""
        await asyncio.Event().wait()


@dataclass(slots=True)
class _Issued:
    """A prompt that was issued and had not ended when that was last looked up."""

    batch: TensorDict
    index: int
    worker: int
    attempt: int


class AgentWorkers:
    """verl's agent-loop workers, each watched until its process ends.

    Args:
        workers: Actor handles of `HoldsPrompts` workers.
        replacement: Makes a worker in place of the one with this number; called in the watching thread.
        start_timeout_s: How long a replacement may take to answer, and a worker that cannot be reached; after that the
            others have its prompts.
        begin_again: Called with the prompts that are about to be issued again, and those that are given up: what
            their ended trajectories reported does not count.
        give_up: Called with each prompt that is not issued again, as a batch of one, and its attempt; gives its
            trajectories an outcome.
        replaced: Called for each worker that was replaced.

    The last three are called from the watching thread or from the caller of `issue`, one at a time.
    """

    def __init__(
        self,
        workers: Sequence[Any],
        *,
        replacement: Callable[[int], Any],
        start_timeout_s: float,
        begin_again: Callable[[Sequence[str]], None],
        give_up: Callable[[TensorDict, int], None],
        replaced: Callable[[], None],
    ) -> None:
        configure_logs_by_default()
        self._workers: dict[int, Any] = dict(enumerate(workers))
        self._replacement, self._start_timeout_s = replacement, start_timeout_s
        self._begin_again, self._give_up, self._replaced = begin_again, give_up, replaced
        self._issued: dict[str, _Issued] = {}
        self._unanswered: set[int] = set()
        # Held while prompts are issued, and while what was issued is compared with what a worker holds.
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="agent workers", daemon=True)
        self._thread.start()

    def issue(self, prompts: TensorDict, attempt: int = 0) -> None:
        """Divide the prompts among the workers. A worker that dies before or after it has accepted them loses none."""
        with self._lock:
            # What has ended is dropped here, so that the table does not grow with the training.
            running = _running()
            self._issued = {uid: issued for uid, issued in self._issued.items() if uid in running}
            if not self._workers:
                self._fail(prompts, range(len(prompts)), running, attempt)
                return
            chunks = prompts.chunk(len(self._workers))
            self._send([(worker, chunk, attempt) for worker, chunk in zip(self._workers, chunks, strict=False)])

    def close(self) -> None:
        """Stop watching. verl never stops its manager; then the thread ends with the process."""
        self._closed.set()
        self._thread.join()

    def _send(self, chunks: Iterable[tuple[int, TensorDict, int]]) -> None:
        sent: list[tuple[int, Any]] = []
        for worker, batch, attempt in chunks:
            for index, uid in enumerate(batch["uid"]):
                self._issued[str(uid)] = _Issued(batch, index, worker, attempt)
            # Noted as issued before it is sent: if the worker dies in between, its prompts are found among the lost
            # ones.
            sent.append((worker, self._workers[worker].generate_sequences.remote(batch, attempt)))
        # All are sent before the first is awaited; a worker answers when it has accepted its prompts, not when it has
        # played them.
        for worker, accepted in sent:
            try:
                ray.get(accepted, timeout=self._start_timeout_s)
            except RayTaskError:  # raised by the worker, which lives
                raise
            except RayError:  # the watching thread finds out which of them the worker holds
                self._unanswered.add(worker)

    def _watch(self) -> None:
        ends: dict[Any, int] = {worker.until_end.remote(): number for number, worker in self._workers.items()}
        unsettled: set[int] = set()
        failing_since: float | None = None
        while not self._closed.is_set():
            try:
                if ends:
                    ended, _ = ray.wait(list(ends), timeout=_POLL_S)
                else:
                    ended = list[Any]()
                    self._closed.wait(_POLL_S)
                with self._lock:
                    unsettled |= {ends.pop(end) for end in ended} | self._unanswered
                    self._unanswered = set()
                for number in sorted(unsettled & self._workers.keys()):
                    if self._settle(number) and number not in ends.values():
                        ends[self._workers[number].until_end.remote()] = number
                    unsettled.discard(number)
                failing_since = None
            except Exception:  # boundary: without this thread, the prompts of the next dead worker run forever
                if not ray.is_initialized():
                    return
                if failing_since is None:
                    failing_since = time.monotonic()
                    log.exception("agent workers could not be looked after; tried again", workers=sorted(unsettled))
                elif time.monotonic() - failing_since > self._start_timeout_s:
                    log.exception("agent workers are given up, with their prompts", workers=sorted(unsettled))
                    self._abandon(unsettled & self._workers.keys())
                    failing_since = None
                self._closed.wait(_POLL_S)

    def _abandon(self, numbers: Collection[int]) -> None:
        """End the prompts of workers that cannot be settled as failed, without more: the trainer waits for each."""
        with self._lock:
            for number in numbers:
                ray.kill(self._workers.pop(number))
            running = _running()
            for uid in [uid for uid, issued in self._issued.items() if issued.worker in numbers and uid in running]:
                self._end(uid, running)

    def _settle(self, number: int) -> bool:
        """Replace a worker that has died, and issue again what it has lost. Returns whether it is to be watched."""
        if (problem := self._problem(self._workers[number])) and not self._closed.is_set():
            self._replace(number, problem)
        with self._lock:
            worker, held = self._workers.get(number), frozenset[str]()
            if worker is not None:
                try:
                    held = frozenset(ray.get(worker.held.remote(), timeout=self._start_timeout_s))
                except RayError:  # it has died meanwhile
                    self._unanswered.add(number)
                    return False
            self._issue_lost(number, held)
        return worker is not None

    def _replace(self, number: int, problem: str) -> None:
        """Put a new worker in the place of a dead one; leave the place empty where it does not start."""
        ray.kill(self._workers[number])  # where it only cannot be reached, so that nothing is played twice
        # Outside the lock: a start takes seconds to minutes, and `issue` must not wait for it.
        worker = self._replacement(number)
        new_problem = self._problem(worker)
        with self._lock:
            if not new_problem:
                self._workers[number] = worker
                self._replaced()
                log.warning("agent worker died and was replaced", worker=number, problem=problem)
            else:
                del self._workers[number]
                ray.kill(worker)
                left = len(self._workers)
                told = {"worker": number, "problem": problem, "replacement": new_problem}
                log.error("agent worker died and could not be replaced", left=left, **told)

    def _problem(self, worker: Any) -> str:
        """Why a worker does not answer within `start_timeout_s`, at once where it is dead; empty where it answers.

        Ray reports the death of an actor by what ended it, not as `ActorDiedError` alone: `OutOfMemoryError`,
        `NodeDiedError`, `RuntimeEnvSetupError` and more are siblings of that class. Two errors alone may pass.
        """
        deadline = time.monotonic() + self._start_timeout_s
        problem = "closed"
        while not self._closed.is_set() and (left := deadline - time.monotonic()) > 0:
            try:
                ray.get(worker.held.remote(), timeout=left)
                return ""
            except RayError as error:
                problem = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
                if not isinstance(error, ActorUnavailableError | GetTimeoutError):
                    break
                self._closed.wait(_POLL_S)
        return problem

    def _issue_lost(self, number: int, held: frozenset[str]) -> None:
        running = _running()
        lost = [
            (uid, issued)
            for uid, issued in self._issued.items()
            if issued.worker == number and uid in running and uid not in held
        ]
        if not lost:
            return
        uids = [uid for uid, _ in lost]
        # Before they are issued again: the new attempt writes samples under the same keys.
        _clear_samples(set(uids))
        self._begin_again(uids)
        workers = [number] if number in self._workers else list(self._workers)
        together: defaultdict[tuple[int, int], list[_Issued]] = defaultdict(list)
        for _, issued in lost:
            # A row is taken out of the batch that it was issued in, so prompts of one batch and attempt go out
            # together.
            together[id(issued.batch), issued.attempt + 1].append(issued)
        chunks: list[tuple[int, TensorDict, int]] = []
        for (_, attempt), prompts in together.items():
            batch, indices = prompts[0].batch, [prompt.index for prompt in prompts]
            if attempt % MOST_ATTEMPTS == 0 or not workers:
                self._fail(batch, indices, running, attempt - 1)
                continue
            for offset, worker in enumerate(workers):
                if own := indices[offset :: len(workers)]:
                    chunks.append((worker, _rows(batch, own), attempt))
        log.warning(
            "prompts of a dead agent worker",
            worker=number,
            issued_again=sum(len(batch) for _, batch, _ in chunks),
            lost=len(lost),
        )
        self._send(chunks)

    def _fail(self, batch: TensorDict, indices: Iterable[int], running: Mapping[str, str], attempt: int) -> None:
        for index in indices:
            prompt = _rows(batch, [index])
            (uid,) = (str(each) for each in prompt["uid"])
            self._give_up(prompt, attempt)
            # After the report: once the status is terminal, the trainer counts what was reported.
            self._end(uid, running)

    def _end(self, uid: str, running: Mapping[str, str]) -> None:
        tq.kv_put(key=uid, partition_id=running[uid], tag={"status": "failure"})
        self._issued.pop(uid, None)


def _rows(batch: TensorDict, indices: Sequence[int]) -> TensorDict:
    return cast("TensorDict", index_select_tensor_dict(batch, list(indices)))


def _running() -> dict[str, str]:
    """The partitions of the prompts that have not ended, by uid."""
    return {
        uid: partition
        for partition, items in (tq.kv_list() or {}).items()
        for uid, tag in items.items()
        if tag.get("is_prompt") and tag["status"] in ("pending", "running")
    }


def _clear_samples(uids: set[str]) -> None:
    """Remove what ended trajectories of these prompts have written: a group is played again as a whole."""
    for partition, items in (tq.kv_list() or {}).items():
        samples = [key for key, tag in items.items() if not tag.get("is_prompt") and key.split("_")[0] in uids]
        if samples:
            tq.kv_clear(keys=samples, partition_id=partition)
