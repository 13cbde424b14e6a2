"""A run's sampling parameters, and the meaning of an engine's log-probabilities.

Everywhere in this program a logprob is that of the sampled id under the distribution it was drawn from: the logits
divided by the temperature and, where top-p or top-k excluded tokens, renormalised over the rest. At temperature 0 there
is not a draw; then it is the logprob at temperature 1 with nothing excluded.

Servers report that, or the logprob before what was excluded, or before the temperature too, as they were started, and
none can be converted into another without the other tokens' logits. At temperature 1 and 0 with nothing excluded all
are one number; at other settings a server's are left out of the traces.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from mcp_rollout.rollout.errors import EngineError
from mcp_rollout.rollout.types import Completion

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
"""A token id in a server's answer; tokenizers read no other number."""

_MOST = 1e-4
"""Of a logprob, by rounding."""


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

    @property
    def has_one_logprob(self) -> bool:
        """Whether a logprob is the same number whatever kind a server reports."""
        return self.temperature in (0.0, 1.0) and not self.is_truncated


def with_logprobs(completion: Completion, logprobs: Sequence[float | None] | None) -> Completion:
    """The completion with an engine's logprobs, validated; None leaves it without.

    Raises:
        EngineError: a logprob is missing, not finite or above 0, or there are too many.
    """
    if logprobs is None:
        return completion
    if len(logprobs) != len(completion.ids):
        raise EngineError(f"{len(logprobs)} logprobs for {len(completion.ids)} tokens")
    numbers = [logprob for logprob in logprobs if logprob is not None and math.isfinite(logprob) and logprob <= _MOST]
    if len(numbers) != len(logprobs):
        raise EngineError("the engine returned a logprob that is not a finite number")
    return replace(completion, logprobs=numbers)
