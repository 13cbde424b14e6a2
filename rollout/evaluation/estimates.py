"""pass@k and pass^k with their confidence intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

Z_95 = 1.959963984540054
"""Quantile of the standard normal distribution that bounds its middle 95%."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A probability averaged over tasks, and its 95% interval."""

    value: float
    low: float
    high: float
    tasks: int
    """Number of tasks with enough samples to count."""


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that at least one of `k` samples succeeds, estimated without bias from `c` successes in `n`.

    1 - C(n-c, k) / C(n, k): Chen et al. 2021, "Evaluating Large Language Models Trained on Code".

    Raises:
        ValueError: not 0 <= c <= n and 1 <= k <= n.
    """
    _check(n, c, k)
    return 1.0 - comb(n - c, k) / comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Probability that all of `k` samples succeed, estimated without bias from `c` successes in `n`.

    C(c, k) / C(n, k): Yao et al. 2024, "tau-bench", written pass^k there.

    Raises:
        ValueError: not 0 <= c <= n and 1 <= k <= n.
    """
    _check(n, c, k)
    return comb(c, k) / comb(n, k)


def wilson(value: float, n: float) -> tuple[float, float]:
    """The Wilson score interval (95%) of a share `value` seen in `n` independent trials; `n` may be a fraction."""
    squared = Z_95 * Z_95
    centre = (value + squared / (2 * n)) / (1 + squared / n)
    half = Z_95 / (1 + squared / n) * math.sqrt(value * (1 - value) / n + squared / (4 * n * n))
    # Exact at the ends, where rounding would leave 1e-16.
    return (max(0.0, centre - half) if value > 0 else 0.0, min(1.0, centre + half) if value < 1 else 1.0)


def estimate(values: Sequence[float], most_trials: float) -> Estimate | None:
    """The mean of one value per task, each between 0 and 1; None without tasks.

    The interval is Wilson's with an effective number of trials. Tasks are the independent units; the variance of their
    values gives the effective number, p(1-p) / (variance of the mean), bounded below by the number of tasks and above
    by `most_trials`. With one sample per task this is Wilson's interval itself. Unlike a bootstrap over tasks it does
    not shrink to a point where all of a few tasks succeed or fail.

    Args:
        most_trials: Upper bound of the number of independent trials: n samples of a task hold n/k disjoint sets of k.
    """
    if not values:
        return None
    tasks, mean = len(values), statistics.fmean(values)
    variance = statistics.pvariance(values, mean) / tasks
    inner = mean * (1 - mean)
    trials = float(tasks)
    if 0 < mean < 1:
        trials = min(max(inner / variance if variance > 0 else math.inf, tasks), max(most_trials, tasks))
    low, high = wilson(mean, trials)
    return Estimate(value=mean, low=low, high=high, tasks=tasks)


def ks(samples: int) -> list[int]:
    """The k that are reported: powers of two up to the number of samples, and that number."""
    powers = [2**exponent for exponent in range(samples.bit_length()) if 2**exponent <= samples]
    return sorted({*powers, samples})


def _check(n: int, c: int, k: int) -> None:
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"{c} successes in {n} samples say nothing about k={k}")
