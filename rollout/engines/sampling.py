"""A run's sampling parameters, and the meaning of an engine's log-probabilities.

Everywhere in this program a logprob is that of the sampled id under the distribution it was drawn from: the logits
divided by the temperature and, where top-p or top-k excluded tokens, renormalised over the rest. At temperature 0 there
is not a draw; then it is the logprob at temperature 1 with nothing excluded.

Engines report one of three kinds. vLLM reports `raw` ones unless it was started with `--logprobs-mode
processed_logprobs`, which gives `drawn`; SGLang reports `scaled` ones unless it was started with
`SGLANG_RETURN_ORIGINAL_LOGPROB=1`, which gives `raw`. One number cannot be converted without the other tokens' logits:
where an engine's semantics and a run's parameters do not give ours, the traces have no logprobs.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from mcp_rollout.rollout.errors import EngineError
from mcp_rollout.rollout.types import Completion

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
"""A token id in a server's answer; tokenizers read no other number."""

GREEDY_TOP_P = 1e-6
"""So small that only the likeliest token is left, at any temperature."""
PROBE_TEMPERATURES = (1.0, 2.0)
_SAME = 0.02
"""Two runs of one request differ by less on a GPU; two temperatures by more."""
_CERTAIN = 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParameters:
    """The same for every turn of every trajectory of a run; engines' own defaults never apply."""

    temperature: float = 1.0
    """0 takes the likeliest token."""
    top_p: float = 1.0
    top_k: int = -1
    """-1 means all tokens."""
    seed: int = 0
    """Each turn's own seed derives from it; see `rollout.environment.task.sampling_seed`."""

    @property
    def is_truncated(self) -> bool:
        """Whether top-p or top-k exclude tokens before the draw, so that the others' probabilities sum to 1."""
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0)


class LogprobSemantics(StrEnum):
    DRAWN = "drawn"
    """Under the distribution that the id was drawn from: ours."""
    SCALED = "scaled"
    """Of the logits divided by the temperature, nothing excluded."""
    RAW = "raw"
    """Of the logits as they are."""
    UNKNOWN = "unknown"
    """Missing, or not log-probabilities."""

    def fits(self, parameters: SamplingParameters) -> bool:
        """Whether, under these parameters, such a logprob equals the one under the distribution of the draw."""
        if self is LogprobSemantics.DRAWN or parameters.is_truncated:
            return self is LogprobSemantics.DRAWN
        is_unscaled = parameters.temperature in (0.0, 1.0)
        return self is LogprobSemantics.SCALED or (self is LogprobSemantics.RAW and is_unscaled)


Probe = Callable[[int, float], Awaitable[float | None]]
"""(prompt id, temperature) -> the logprob reported for one token sampled with `GREEDY_TOP_P`."""


async def detect_logprob_semantics(probe: Probe, prompt_ids: Sequence[int]) -> LogprobSemantics:
    """Sample the likeliest token after each of a few one-token prompts, at two temperatures, and compare its logprobs.

    Under `GREEDY_TOP_P` that token's probability is 1 where logprobs are `drawn`. Otherwise it falls with the
    temperature (`scaled`) or does not (`raw`).
    """
    answers = [[await probe(token, temperature) for temperature in PROBE_TEMPERATURES] for token in prompt_ids]
    pairs = [(first, second) for first, second in answers if first is not None and second is not None]
    values = [value for pair in pairs for value in pair]
    if len(pairs) < len(answers) or not values or any(not math.isfinite(v) or v > _CERTAIN for v in values):
        return LogprobSemantics.UNKNOWN
    if all(abs(value) <= _CERTAIN for value in values):
        return LogprobSemantics.DRAWN
    is_same = all(abs(first - second) <= _SAME for first, second in pairs)
    return LogprobSemantics.RAW if is_same else LogprobSemantics.SCALED


def with_logprobs(completion: Completion, logprobs: Sequence[float | None] | None) -> Completion:
    """The completion with an engine's logprobs, validated; None leaves it without.

    Raises:
        EngineError: a logprob is missing or not finite, or there are too many.
    """
    if logprobs is None:
        return completion
    if len(logprobs) != len(completion.ids):
        raise EngineError(f"{len(logprobs)} logprobs for {len(completion.ids)} tokens")
    numbers = [logprob for logprob in logprobs if logprob is not None and math.isfinite(logprob)]
    if len(numbers) != len(logprobs):
        raise EngineError("the engine returned a logprob that is not a finite number")
    return replace(completion, logprobs=numbers)
