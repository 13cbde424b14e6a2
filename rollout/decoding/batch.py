# pyright: basic
"""Continuous batching on the model's device: requests join and leave between decode steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import torch
from transformers import PreTrainedModel

from mcp_rollout.rollout.decoding.attention import group_heads
from mcp_rollout.rollout.decoding.kv_cache import KVCache
from mcp_rollout.rollout.decoding.sampling import Sampling, draw, uniform


class Ending(StrEnum):
    """Why a request ended, with verl's names."""

    COMPLETED = "completed"
    LENGTH = "length"
    ABORTED = "aborted"


@dataclass(kw_only=True, slots=True, eq=False)
class Request:
    """One request while it is decoded."""

    request_id: str
    prompt_ids: list[int]
    sampling: Sampling
    max_tokens: int
    stop_ids: frozenset[int]
    seed: int
    """With the position it decides each draw: a request that continues an aborted one draws what that would have."""
    ids: list[int] = field(init=False)
    """Prompt and sampled tokens."""
    logprobs: list[float] = field(default_factory=list[float])
    """One for each sampled token."""
    ending: Ending | None = None
    slot: int = -1
    cached: int = 0
    """How many leading `ids` have their keys and values in the slot."""

    def __post_init__(self) -> None:
        self.ids = list(self.prompt_ids)

    @property
    def token_ids(self) -> list[int]:
        return self.ids[len(self.prompt_ids) :]

    def append(self, token: int, logprob: float) -> None:
        self.ids.append(token)
        self.logprobs.append(logprob)
        if token in self.stop_ids:
            self.ending = Ending.COMPLETED
        elif len(self.logprobs) >= self.max_tokens:
            self.ending = Ending.LENGTH


@dataclass(slots=True)
class _Slot:
    """The sequence whose keys and values a slot holds."""

    ids: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    request: Request | None = None
    last_used: int = 0


class ContinuousBatch:
    """Decodes many requests together, one token each per `step`. Not thread-safe; no I/O.

    A request's tokens do not depend on its neighbours beyond float rounding. A slot keeps its keys and values when its
    request ends, so the next turn of the same trajectory, or another sample of the same prompt, computes its new
    tokens only.
    """

    def __init__(self, model: PreTrainedModel, *, max_sequences: int) -> None:
        group_heads(model)
        self._model = model
        self._device = model.device
        self._cache = KVCache(model.config, model.dtype, model.device)
        self._slots = [_Slot() for _ in range(max_sequences)]
        self._waiting: deque[Request] = deque()
        self._clock = 0
        self.prefilled = 0
        """Tokens computed so far outside the one-per-step decoding, for measurements."""

    def __bool__(self) -> bool:
        """Whether any request is left to decode."""
        return bool(self._waiting or self._running())

    def add(self, request: Request) -> None:
        self._waiting.append(request)

    def forget(self) -> None:
        """Recompute every key and value before its next use, since the weights have changed."""
        for slot in self._slots:
            slot.ids = slot.ids[:0]
            if slot.request is not None:
                slot.request.cached = 0

    def abort(self) -> list[Request]:
        """End every request, waiting ones included, and return them."""
        aborted = [*self._running(), *self._waiting]
        for request in aborted:
            self.cancel(request)
        return aborted

    def cancel(self, request: Request) -> None:
        """End one request, which may not have joined yet; nothing happens to one that has ended."""
        if request.ending is not None:
            return
        if request.slot >= 0:
            self._release(request)
        elif request in self._waiting:
            self._waiting.remove(request)
        request.ending = Ending.ABORTED

    @torch.inference_mode()
    def step(self) -> list[Request]:
        """Give every request that has a slot, or can have one, one more token; returns those that ended."""
        caught_up = [request for request in self._running() if len(request.ids) - request.cached == 1]
        rows: list[Request] = []
        logits: list[torch.Tensor] = []
        for request in self._lagging():
            rows.append(request)
            logits.append(self._prefill(request))
            request.cached = len(request.ids)
        if caught_up:
            rows += caught_up
            logits.append(self._decode(caught_up))
        if not rows:
            return []
        uniforms = [uniform(row.seed, len(row.ids)) for row in rows]
        ids, logprobs = draw(torch.cat(logits), [row.sampling for row in rows], uniforms)
        for request, token, logprob in zip(rows, ids, logprobs, strict=True):
            request.cached = len(request.ids)
            request.append(token, logprob)
        ended = [request for request in rows if request.ending is not None]
        for request in ended:
            self._release(request)
        return ended

    def _running(self) -> list[Request]:
        return [slot.request for slot in self._slots if slot.request is not None]

    def _lagging(self) -> Iterator[Request]:
        """Requests with several uncached tokens. Each must be prefilled before the next is taken."""
        yield from [request for request in self._running() if len(request.ids) - request.cached > 1]
        # One by one, so that of several samples of one prompt the first computes it and the others copy.
        while self._waiting and any(slot.request is None for slot in self._slots):
            request = self._waiting.popleft()
            self._place(request)
            yield request

    def _place(self, request: Request) -> None:
        """Give a request a free slot, with the longest part of its prompt that any slot holds."""
        self._clock += 1
        # The last prompt token is always computed: its logits are what the first draw needs.
        prompt = np.asarray(request.prompt_ids[:-1], dtype=np.int64)
        shared = [_common_prefix(self._held(slot), prompt) for slot in self._slots]
        source = int(np.argmax(shared))
        length = shared[source]
        free = [index for index, slot in enumerate(self._slots) if slot.request is None]
        continues = length > 0 and length == len(self._slots[source].ids) and source in free
        target = source if continues else min(free, key=lambda index: self._slots[index].last_used)
        self._cache.grow(target + 1, len(prompt) + 1)
        if target != source:
            self._cache.copy(source, target, length)
        request.slot, request.cached = target, length
        self._slots[target] = _Slot(request=request, last_used=self._clock)

    def _held(self, slot: _Slot) -> np.ndarray:
        if slot.request is None:
            return slot.ids
        return np.asarray(slot.request.ids[: slot.request.cached], dtype=np.int64)

    def _release(self, request: Request) -> None:
        slot = self._slots[request.slot]
        slot.ids, slot.request = self._held(slot), None

    def _prefill(self, request: Request) -> torch.Tensor:
        """Logits [1, vocabulary] after a request, computing its uncached tokens."""
        new = torch.tensor([request.ids[request.cached :]], device=self._device)
        self.prefilled += new.shape[1]
        positions = torch.arange(request.cached, len(request.ids), device=self._device)[None]
        self._cache.grow(request.slot + 1, len(request.ids))
        cache = self._cache.at(slice(request.slot, request.slot + 1), positions)
        output = self._model(
            input_ids=new, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=1
        )
        return output.logits[:, -1]

    def _decode(self, requests: Sequence[Request]) -> torch.Tensor:
        """Logits [rows, vocabulary] after requests that have one new token each, computed together."""
        # A slice of the buffers needs no copying, so slots without a new token are computed too, and ignored.
        # Each of them writes one position past what it holds, which nothing reads before it is overwritten.
        count = max(request.slot for request in requests) + 1
        tokens = [0] * count
        ends = [self._end(slot) for slot in self._slots[:count]]
        for request in requests:
            tokens[request.slot] = request.ids[-1]
            ends[request.slot] = len(request.ids) - 1
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
        return output.logits[[request.slot for request in requests], -1]

    def _end(self, slot: _Slot) -> int:
        return len(slot.ids) if slot.request is None else len(slot.request.ids)


def _common_prefix(held: np.ndarray, prompt: np.ndarray) -> int:
    length = min(len(held), len(prompt))
    differs = np.flatnonzero(held[:length] != prompt[:length])
    return int(differs[0]) if len(differs) else length
