# pyright: basic
"""Sampling: a request's parameters, the draw of a token, its log-probability, and the ids that end a generation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import Any

import torch
from transformers import GenerationConfig


def end_ids(generation_config: GenerationConfig | None, *more: int | None) -> frozenset[int]:
    """Ids that end a generation: those of the model's generation config, where it has one, and further ones."""
    configured = generation_config.eos_token_id if generation_config else None
    ids = [*more, *(configured if isinstance(configured, list) else [configured])]
    return frozenset(token for token in ids if token is not None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """One request's sampling parameters, with verl's names."""

    temperature: float = 1.0
    """0 takes the likeliest token."""
    top_p: float = 1.0
    top_k: int = -1
    """-1 and 0 mean all tokens."""
    logprobs: bool = False
    max_tokens: int | None = None
    stop_token_ids: frozenset[int] = frozenset()
    seed: int | None = None
    """Two requests with the same seed, prompt and weights draw the same tokens, whatever else is in the batch."""

    @classmethod
    def parse(cls, params: Mapping[str, Any]) -> Sampling:
        """Read the dict an agent loop sends.

        Raises:
            ValueError: a parameter is unknown, unsupported or out of range; none is silently ignored.
        """
        known = {field.name for field in fields(cls)} | {"max_new_tokens", "repetition_penalty"}
        unknown = sorted(params.keys() - known)
        if unknown:
            raise ValueError(f"sampling parameters {unknown} are not supported by transformers_cpu")
        if params.get("repetition_penalty", 1.0) != 1.0:
            raise ValueError("repetition_penalty other than 1.0 is not supported by transformers_cpu")
        limits = [params[key] for key in ("max_tokens", "max_new_tokens") if params.get(key) is not None]
        seed = params.get("seed")
        sampling = cls(
            temperature=float(params.get("temperature", 1.0)),
            top_p=float(params.get("top_p", 1.0)),
            top_k=int(params.get("top_k", -1)),
            logprobs=bool(params.get("logprobs", False)),
            max_tokens=int(min(limits)) if limits else None,
            stop_token_ids=frozenset(params.get("stop_token_ids") or ()),
            seed=None if seed is None else int(seed),
        )
        if sampling.temperature < 0 or not 0 < sampling.top_p <= 1 or sampling.top_k < -1:
            raise ValueError(f"sampling parameters out of range: {dict(params)}")
        return sampling


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) for each seed and position in a sequence, independent of every other."""
    digest = blake2b(f"{seed}/{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def draw(
    logits: torch.Tensor, samplings: Sequence[Sampling], uniforms: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Draw one token for each row of `logits` [rows, vocabulary]; returns the ids and their log-probabilities.

    A row's token is found by inverting its cumulative distribution at `uniforms[row]`, in [0, 1): one number decides,
    so a row's choice does not depend on the other rows. The log-probability is the log-softmax of the logits divided
    by the temperature, as verl's trainer recomputes it (vLLM calls that "processed"); top-k and top-p renormalise it
    over the tokens they leave. At temperature 0 it is that of temperature 1, and top-k and top-p do not apply.
    """
    device = logits.device
    temperatures = torch.tensor([s.temperature if s.temperature > 0 else 1.0 for s in samplings], device=device)
    logits = logits.float() / temperatures[:, None]
    for row, sampling in enumerate(samplings):
        if sampling.temperature > 0 and (sampling.top_k > 0 or sampling.top_p < 1):
            logits[row] = _truncate(logits[row], sampling)
    # On a CPU log_softmax rounds by 1e-4 where one of 49,152 tokens is likely; this is also how verl's trainer does it.
    logprobs = logits - logits.logsumexp(dim=-1, keepdim=True)
    # Scaling by the last sum corrects its rounding; the clamp is for a product that rounds up to that sum.
    cumulative = logprobs.double().exp().cumsum(dim=-1)
    thresholds = torch.tensor(uniforms, dtype=torch.float64, device=device) * cumulative[:, -1]
    drawn = torch.searchsorted(cumulative, thresholds[:, None], right=True).squeeze(1)
    drawn = drawn.clamp(max=logits.shape[1] - 1)
    greedy = torch.tensor([s.temperature == 0 for s in samplings], device=device)
    ids = torch.where(greedy, logits.argmax(dim=-1), drawn)
    return ids.tolist(), logprobs.gather(1, ids[:, None]).squeeze(1).tolist()


def _truncate(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Logits with -inf for the tokens that top-k, then top-p, exclude. The likeliest token always stays."""
    ordered, order = logits.sort(descending=True)
    keep = torch.ones_like(ordered, dtype=torch.bool)
    if sampling.top_k > 0:
        keep[sampling.top_k :] = False
    probabilities = ordered.masked_fill(~keep, float("-inf")).softmax(dim=-1)
    keep &= probabilities.cumsum(dim=-1) - probabilities < sampling.top_p
    keep[0] = True
    return logits.scatter(0, order, ordered.masked_fill(~keep, float("-inf")))
