"""How often the intervals of `compare` hold the true difference.

    python -m lab.benchmarks.comparison_coverage

Rows are drawn with a seed from populations whose true difference is known. `covered` is the share of the intervals
given that hold it (95% is promised), `given` the share of comparisons with an interval, `half` its median half width.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from random import Random
from statistics import fmean, median

from mcp_rollout.rollout.evaluation.comparison import paired

Pair = tuple[float, float]
ROWS = (5, 8, 12, 20, 40, 100, 200)


def binary(before: float, after: float, samples: int = 1) -> Callable[[Random], Pair]:
    """Success of a row: `samples` trajectories of each run, which are better in rows that are easier."""

    def draw(random: Random) -> Pair:
        ease = random.choice((-0.25, 0.25)) * min(before, after, 1 - before, 1 - after) * 4
        shares = [fmean(random.random() < chance + ease / 2 for _ in range(samples)) for chance in (before, after)]
        return shares[0], shares[1]

    return draw


def noisy(noise: Callable[[Random], float]) -> Callable[[Random], Pair]:
    def draw(random: Random) -> Pair:
        level = random.random()
        return level, level + noise(random)

    return draw


def sparse(random: Random) -> Pair:
    """One row in ten changes by 1."""
    return 0.0, float(random.random() < 0.1)


POPULATIONS: dict[str, tuple[Callable[[Random], Pair], float]] = {
    "success 0.5 to 0.5": (binary(0.5, 0.5), 0.0),
    "success 0.3 to 0.6": (binary(0.3, 0.6), 0.3),
    "success 0.1 to 0.9": (binary(0.1, 0.9), 0.8),
    "success 0.4 to 0.5, 4 samples": (binary(0.4, 0.5, 4), 0.1),
    "one row in ten gains 1": (sparse, 0.1),
    "normal": (noisy(lambda random: random.gauss(0.1, 0.3)), 0.1),
    "lognormal": (noisy(lambda random: random.lognormvariate(0, 0.8)), math.exp(0.32)),
    "lognormal, a longer tail": (noisy(lambda random: random.lognormvariate(0, 1)), math.exp(0.5)),
    "exponential": (noisy(lambda random: random.expovariate(1)), 1.0),
    "uniform": (noisy(lambda random: random.random()), 0.5),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=400)
    runs: int = parser.parse_args().runs
    sys.stdout.write(f"{'population':32}{'rows':>6}{'covered':>9}{'given':>7}{'half':>7}\n")
    for name, (draw, truth) in POPULATIONS.items():
        for rows in ROWS:
            covered, widths = 0, list[float]()
            for seed in range(runs):
                random = Random(f"{name}/{rows}/{seed}")
                pairs = [draw(random) for _ in range(rows)]
                found = paired([a for a, _ in pairs], [b for _, b in pairs])
                if found.low is not None and found.high is not None:
                    covered += found.low <= truth + 1e-12 and truth - 1e-12 <= found.high
                    widths.append((found.high - found.low) / 2)
            share = f"{covered / len(widths):.2f}" if widths else "-"
            half = f"{median(widths):.2f}" if widths else "-"
            line = f"{name:32}{rows:6}{share:>9}{len(widths) / runs:7.2f}{half:>7}\n"
            sys.stdout.write(line)


if __name__ == "__main__":
    main()
