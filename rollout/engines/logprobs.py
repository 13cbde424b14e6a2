"""What an engine's log-probabilities are log-probabilities of.

Everywhere in this program a logprob is that of the sampled id under the distribution it was drawn from: the logits
divided by the temperature, and, where top-p or top-k excluded tokens, renormalised over those that were left. At
temperature 0 there is no draw; then it is that of temperature 1 with nothing excluded.

Engines mean one of three things. vLLM gives `raw` ones unless it was started with `--logprobs-mode
processed_logprobs`, which gives `drawn`; SGLang gives `scaled` ones unless `SGLANG_RETURN_ORIGINAL_LOGPROB=1` was set
where it was started, which gives `raw`. A number alone cannot be converted, since the other tokens' logits are gone:
where an engine's meaning and a run's parameters do not give ours, logprobs are left out of the traces.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum

from rollout.engines.parameters import SamplingParameters

GREEDY_TOP_P = 1e-6
"""So small that only the likeliest token is left, at any temperature."""
PROBED_TEMPERATURES = (1.0, 2.0)
_SAME = 0.02
"""Two runs of one request differ by less on a GPU; two temperatures by more."""
_CERTAIN = 1e-6


class LogprobSemantics(StrEnum):
    DRAWN = "drawn"
    """Under the distribution that the id was drawn from: ours."""
    SCALED = "scaled"
    """Of the logits divided by the temperature, nothing excluded."""
    RAW = "raw"
    """Of the logits as they are."""
    UNKNOWN = "unknown"
    """Not log-probabilities, or none were given."""

    def fits(self, parameters: SamplingParameters) -> bool:
        """Whether numbers of this meaning have ours as well, under these parameters."""
        match self:
            case LogprobSemantics.DRAWN:
                return True
            case LogprobSemantics.SCALED:
                return not parameters.is_truncated
            case LogprobSemantics.RAW:
                return not parameters.is_truncated and parameters.temperature in (0.0, 1.0)
            case LogprobSemantics.UNKNOWN:
                return False


Probe = Callable[[int, float], Awaitable[float | None]]
"""(prompt id, temperature) -> the logprob reported for one token sampled with `GREEDY_TOP_P`."""


async def detect_logprob_semantics(probe: Probe, prompt_ids: Sequence[int]) -> LogprobSemantics:
    """Ask the engine for the likeliest token after each of a few prompts of one token, at two temperatures.

    Under `GREEDY_TOP_P` that token's probability is 1 where logprobs are `drawn`. Otherwise it falls with the
    temperature (`scaled`) or does not (`raw`).
    """
    answers = [[await probe(token, temperature) for temperature in PROBED_TEMPERATURES] for token in prompt_ids]
    pairs = [(first, second) for first, second in answers if first is not None and second is not None]
    values = [value for pair in pairs for value in pair]
    if len(pairs) < len(answers) or not values or any(not math.isfinite(v) or v > _CERTAIN for v in values):
        return LogprobSemantics.UNKNOWN
    if all(abs(value) <= _CERTAIN for value in values):
        return LogprobSemantics.DRAWN
    return (
        LogprobSemantics.RAW
        if all(abs(first - second) <= _SAME for first, second in pairs)
        else LogprobSemantics.SCALED
    )
