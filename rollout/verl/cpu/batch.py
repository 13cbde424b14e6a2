# pyright: basic
"""Continuous batching on the model's device: sequences join and leave between decode steps."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import torch
from transformers import PreTrainedModel

from rollout.verl.cpu.sampling import Sampling, draw
from rollout.verl.cpu.slots import SlotCache


class StopReason(StrEnum):
    """Why a sequence ended, in verl's words."""

    COMPLETED = "completed"
    LENGTH = "length"
    ABORTED = "aborted"


@dataclass(kw_only=True, slots=True)
class Sequence:
    """One request while it is decoded."""

    request_id: str
    prompt_ids: list[int]
    sampling: Sampling
    max_tokens: int
    stop_ids: frozenset[int]
    seed: int
    ids: list[int] = field(init=False)
    """Prompt and sampled tokens."""
    logprobs: list[float] = field(default_factory=list[float])
    """One for each sampled token."""
    stop_reason: StopReason | None = None
    slot: int = -1
    cached: int = 0
    """How many leading `ids` have their keys and values in the slot."""
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.ids = list(self.prompt_ids)
        self._random = random.Random(self.seed)

    @property
    def token_ids(self) -> list[int]:
        return self.ids[len(self.prompt_ids) :]

    def uniform(self) -> float:
        """The next number of this sequence's own random stream."""
        return self._random.random()

    def append(self, token: int, logprob: float) -> None:
        self.ids.append(token)
        self.logprobs.append(logprob)
        if token in self.stop_ids:
            self.stop_reason = StopReason.COMPLETED
        elif len(self.logprobs) >= self.max_tokens:
            self.stop_reason = StopReason.LENGTH


@dataclass(slots=True)
class _Slot:
    """What a slot's keys and values belong to."""

    ids: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    sequence: Sequence | None = None
    last_used: int = 0


class ContinuousBatch:
    """Decodes many sequences together, one token each per `step`. Not thread-safe; no I/O.

    A sequence's tokens do not depend on its neighbours beyond float rounding. A slot keeps its keys and values when its
    sequence ends, so the next turn of the same trajectory, or another sample of the same prompt, computes its new
    tokens only.
    """

    def __init__(self, model: PreTrainedModel, *, max_sequences: int) -> None:
        self._model = model
        self._device = model.device
        self._cache = SlotCache(model.config, model.dtype, model.device)
        self._slots = [_Slot() for _ in range(max_sequences)]
        self._waiting: deque[Sequence] = deque()
        self._clock = 0
        self.prefilled = 0
        """Tokens computed so far outside the one-per-step decoding, for measurements."""

    def __bool__(self) -> bool:
        """Whether there is anything left to decode."""
        return bool(self._waiting or self._running())

    def add(self, sequence: Sequence) -> None:
        self._waiting.append(sequence)

    def forget(self) -> None:
        """The weights have changed: recompute every key and value before it is used again."""
        for slot in self._slots:
            slot.ids = slot.ids[:0]
            if slot.sequence is not None:
                slot.sequence.cached = 0

    def abort(self) -> list[Sequence]:
        """End every sequence where it stands, waiting ones included, and return them."""
        running = self._running()
        aborted = [*running, *self._waiting]
        self._waiting.clear()
        for sequence in running:
            self._release(sequence)
        for sequence in aborted:
            sequence.stop_reason = StopReason.ABORTED
        return aborted

    def cancel(self, sequence: Sequence) -> None:
        """End one sequence where it stands; nothing happens to one that has ended."""
        if sequence.stop_reason is not None:
            return
        if sequence.slot < 0:
            self._waiting.remove(sequence)
        else:
            self._release(sequence)
        sequence.stop_reason = StopReason.ABORTED

    @torch.inference_mode()
    def step(self) -> list[Sequence]:
        """Give every sequence that has a slot, or can have one, one more token; returns those that ended."""
        level = [sequence for sequence in self._running() if len(sequence.ids) - sequence.cached == 1]
        rows: list[Sequence] = []
        logits: list[torch.Tensor] = []
        for sequence in self._behind():
            rows.append(sequence)
            logits.append(self._prefill(sequence))
            sequence.cached = len(sequence.ids)
        if level:
            rows += level
            logits.append(self._decode(level))
        if not rows:
            return []
        ids, logprobs = draw(torch.cat(logits), [s.sampling for s in rows], [s.uniform() for s in rows])
        for sequence, token, logprob in zip(rows, ids, logprobs, strict=True):
            sequence.cached = len(sequence.ids)
            sequence.append(token, logprob)
        ended = [sequence for sequence in rows if sequence.stop_reason is not None]
        for sequence in ended:
            self._release(sequence)
        return ended

    def _running(self) -> list[Sequence]:
        return [slot.sequence for slot in self._slots if slot.sequence is not None]

    def _behind(self) -> Iterator[Sequence]:
        """Sequences with several tokens to catch up on. Each must have caught up before the next is asked for."""
        yield from [sequence for sequence in self._running() if len(sequence.ids) - sequence.cached > 1]
        # One by one, so that of several samples of one prompt the first computes it and the others copy.
        while self._waiting and any(slot.sequence is None for slot in self._slots):
            sequence = self._waiting.popleft()
            self._place(sequence)
            yield sequence

    def _place(self, sequence: Sequence) -> None:
        """Give a sequence a free slot, with as much of its prompt as some slot already holds."""
        self._clock += 1
        # The last prompt token is always computed: its logits are what the first draw needs.
        prompt = np.asarray(sequence.prompt_ids[:-1], dtype=np.int64)
        shared = [_common_prefix(self._held(slot), prompt) for slot in self._slots]
        source = int(np.argmax(shared))
        length = shared[source]
        free = [index for index, slot in enumerate(self._slots) if slot.sequence is None]
        continues = length > 0 and length == len(self._slots[source].ids) and source in free
        target = source if continues else min(free, key=lambda index: self._slots[index].last_used)
        self._cache.grow(target + 1, len(prompt) + 1)
        if target != source:
            self._cache.copy(source, target, length)
        sequence.slot, sequence.cached = target, length
        self._slots[target] = _Slot(sequence=sequence, last_used=self._clock)

    def _held(self, slot: _Slot) -> np.ndarray:
        if slot.sequence is None:
            return slot.ids
        return np.asarray(slot.sequence.ids[: slot.sequence.cached], dtype=np.int64)

    def _release(self, sequence: Sequence) -> None:
        slot = self._slots[sequence.slot]
        slot.ids, slot.sequence = self._held(slot), None

    def _prefill(self, sequence: Sequence) -> torch.Tensor:
        """Logits [1, vocabulary] after a sequence, from those of its tokens that are not in its slot yet."""
        new = torch.tensor([sequence.ids[sequence.cached :]], device=self._device)
        self.prefilled += new.shape[1]
        positions = torch.arange(sequence.cached, len(sequence.ids), device=self._device)[None]
        self._cache.grow(sequence.slot + 1, len(sequence.ids))
        cache = self._cache.at(slice(sequence.slot, sequence.slot + 1), positions)
        output = self._model(
            input_ids=new, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=1
        )
        return output.logits[:, -1]

    def _decode(self, sequences: Rows[Sequence]) -> torch.Tensor:
        """Logits [rows, vocabulary] after sequences that have one new token each, computed together."""
        # A slice of the buffers needs no copying, so slots without a new token are computed along and not read.
        # Each of them writes one position past what it holds, which nothing reads before it is overwritten.
        count = max(sequence.slot for sequence in sequences) + 1
        tokens = [0] * count
        ends = [self._end(slot) for slot in self._slots[:count]]
        for sequence in sequences:
            tokens[sequence.slot] = sequence.ids[-1]
            ends[sequence.slot] = len(sequence.ids) - 1
        self._cache.grow(count, max(ends) + 1)
        positions = torch.tensor(ends, device=self._device)[:, None]
        visible = torch.arange(max(ends) + 1, device=self._device)[None] <= positions
        output = self._model(
            input_ids=torch.tensor(tokens, device=self._device)[:, None],
            attention_mask=visible[:, None, None],
            position_ids=positions,
            past_key_values=self._cache.at(slice(0, count), positions),
            use_cache=True,
        )
        return output.logits[[sequence.slot for sequence in sequences], -1]

    def _end(self, slot: _Slot) -> int:
        return len(slot.ids) if slot.sequence is None else len(slot.sequence.ids)


def _common_prefix(held: np.ndarray, prompt: np.ndarray) -> int:
    length = min(len(held), len(prompt))
    differs = np.flatnonzero(held[:length] != prompt[:length])
    return int(differs[0]) if len(differs) else length
