"""pass@k, pass^k and their intervals, against enumeration, published values and simulation."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import combinations
from statistics import fmean

import pytest

from mcp_rollout.rollout.evaluation.estimates import estimate, ks, pass_at_k, pass_hat_k, wilson


@pytest.mark.parametrize("n", range(1, 7))
def test_both_estimators_are_the_share_among_all_ways_to_take_k_of_the_samples(n: int) -> None:
    for c in range(n + 1):
        outcomes = [index < c for index in range(n)]
        for k in range(1, n + 1):
            taken = list(combinations(outcomes, k))
            assert pass_at_k(n, c, k) == pytest.approx(fmean(any(samples) for samples in taken))
            assert pass_hat_k(n, c, k) == pytest.approx(fmean(all(samples) for samples in taken))


@pytest.mark.parametrize(("n", "c", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 4), (3, 1, 0)])
def test_nonsense_is_refused(n: int, c: int, k: int) -> None:
    for estimator in (pass_at_k, pass_hat_k):
        with pytest.raises(ValueError, match="say nothing"):
            estimator(n, c, k)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),  # Newcombe 1998, Statistics in Medicine 17, table I, method 3
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilsons_interval_has_its_published_values(successes: int, n: int, low: float, high: float) -> None:
    assert wilson(successes / n, n) == pytest.approx((low, high), abs=5e-5)


def test_with_one_sample_per_task_an_estimates_interval_is_wilsons() -> None:
    made = estimate([1.0] * 15 + [0.0] * 133, most_trials=148)
    assert made is not None and (made.low, made.high) == pytest.approx(wilson(15 / 148, 148))


def test_samples_narrow_the_interval_as_far_as_tasks_agree() -> None:
    alike = estimate([0.5, 0.5, 0.25, 0.75] * 10, most_trials=160)
    apart = estimate([0.0, 1.0, 0.0, 1.0] * 10, most_trials=160)
    assert alike is not None and apart is not None
    assert apart.high - apart.low == pytest.approx(wilson(0.5, 40)[1] - wilson(0.5, 40)[0])
    assert alike.high - alike.low < 0.7 * (apart.high - apart.low)


@pytest.mark.parametrize("spread", ["tasks alike", "tasks apart"])
@pytest.mark.parametrize(
    ("samples", "k", "of"), [(4, 1, pass_at_k), (8, 4, pass_hat_k), (8, 4, pass_at_k)], ids=["1", "all 4", "any of 4"]
)
def test_the_interval_holds_the_truth_in_nineteen_runs_of_twenty(
    spread: str, samples: int, k: int, of: Callable[[int, int, int], float]
) -> None:
    rng = random.Random(1)
    tasks, runs, held = 30, 1_000, 0

    def chance() -> float:
        return 0.6 if spread == "tasks alike" else rng.betavariate(0.6, 0.4)

    truth = fmean(chance() ** k if of is pass_hat_k else 1 - (1 - chance()) ** k for _ in range(200_000))
    for _ in range(runs):
        chances = [chance() for _ in range(tasks)]
        values = [of(samples, sum(rng.random() < p for _ in range(samples)), k) for p in chances]
        made = estimate(values, most_trials=tasks * samples / k)
        held += made is not None and made.low <= truth <= made.high
    assert held / runs >= 0.93


def test_the_ks_are_powers_of_two_and_the_number_of_samples() -> None:
    assert [ks(samples) for samples in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]
    assert estimate([], most_trials=0) is None
