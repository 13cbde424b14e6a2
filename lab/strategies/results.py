"""Held-out rewards of the runs against the tokens that they sampled."""

from __future__ import annotations

import random
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from lab.demo.seeds import over_seeds
from lab.strategies.long_days import KEY
from lab.strategies.runs import EVERY, Run
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.store import read_traces

_DRAWS = 2000


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One run: sampled tokens and the held-out rewards by task, at each evaluation."""

    run: Run
    tokens: list[float]
    evaluated: list[int]
    """The steps of the evaluations."""
    rewards: list[list[float]]
    turns: float
    """Mean number of turns of the last evaluation's trajectories, summaries included."""
    trained: float
    """Mean reward of the batches since the last evaluation but one: in the contexts of the run's own strategy, where
    held-out rewards are those of chains, but for `compact`."""
    minutes: float
    """verl's time for the steps, without evaluations."""

    @property
    def arm(self) -> str:
        """The run's name without its seed."""
        return self.run.name.replace(f"-{self.run.seed}", "")

    @property
    def means(self) -> list[float]:
        return [statistics.fmean(values) for values in self.rewards]

    @property
    def lift(self) -> float:
        """Change of the mean held-out reward from the first evaluation to the last."""
        return self.means[-1] - self.means[0]

    def interval(self, share: float = 0.95) -> tuple[float, float]:
        """Bootstrap interval of `lift` over the tasks, which are paired."""
        changes = [after - before for before, after in zip(self.rewards[0], self.rewards[-1], strict=True)]
        rng = random.Random(0)
        means = sorted(statistics.fmean(rng.choices(changes, k=len(changes))) for _ in range(_DRAWS))
        cut = int(_DRAWS * (1 - share) / 2)
        return means[cut], means[-cut - 1]


def curve(run: Run) -> Curve | None:
    """The curve of a run; None where it has no evaluation before the first step and a later one."""
    logged = run.metrics()
    sampled = {step: metrics.get("mcp/sampled_tokens", 0.0) for step, metrics in sorted(logged.items())}
    spent = dict(zip(sampled, accumulate(sampled.values()), strict=True))
    rewards: defaultdict[int, dict[int, float]] = defaultdict(dict)
    turns: defaultdict[int, list[int]] = defaultdict(list)
    for trace in evaluated(run):
        if trace.reward is not None:
            rewards[trace.origin.step][trace.origin.row] = trace.reward.score
            turns[trace.origin.step].append(len(trace.turns))
    steps = [step for step in sorted(rewards) if step % EVERY == 0]
    if len(steps) < 2 or steps[0] != 0:
        return None
    last = [logged[step] for step in range(steps[-2] + 1, steps[-1] + 1) if step in logged]
    rows = sorted(set.intersection(*(set(rewards[step]) for step in steps)))
    return Curve(
        run=run,
        tokens=[spent.get(step, 0.0) for step in steps],
        evaluated=steps,
        rewards=[[rewards[step][row] for row in rows] for step in steps],
        turns=statistics.fmean(turns[steps[-1]]),
        trained=statistics.fmean(metrics.get("critic/score/mean", 0.0) for metrics in last),
        minutes=sum(metrics.get("timing_s/step", 0.0) for metrics in logged.values()) / 60,
    )


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The held-out reward of an arm's seeds minus that of another arm's same seeds, at one place of their curves."""

    at: float
    """Sampled tokens, or steps: the most that all of them have."""
    by_seed: list[float]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.by_seed)

    @property
    def interval(self) -> tuple[float, float] | None:
        """95%, over the seeds."""
        return over_seeds(self.by_seed)


def differences(own: Sequence[Curve], other: Sequence[Curve]) -> tuple[Difference, Difference] | None:
    """At equal sampled tokens, between evaluations interpolated, and at equal steps; None without a common seed."""
    by_seed = {each.run.seed: each for each in other}
    pairs = [(each, by_seed[each.run.seed]) for each in own if each.run.seed in by_seed]
    if not pairs:
        return None
    tokens = min(each.tokens[-1] for pair in pairs for each in pair)
    step = min(each.evaluated[-1] for pair in pairs for each in pair)

    def after_tokens(of: Curve) -> float:
        return float(np.interp(tokens, of.tokens, of.means))

    def after_steps(of: Curve) -> float:
        return of.means[of.evaluated.index(step)]

    return (
        Difference(at=tokens, by_seed=[after_tokens(one) - after_tokens(two) for one, two in pairs]),
        Difference(at=step, by_seed=[after_steps(one) - after_steps(two) for one, two in pairs]),
    )


def by_arm(curves: Sequence[Curve]) -> dict[str, list[Curve]]:
    """Curves by what their runs have in common but for the seed, in the order of the runs."""
    arms: defaultdict[str, list[Curve]] = defaultdict(list)
    for each in curves:
        arms[each.arm].append(each)
    return dict(arms)


def evaluated(run: Run) -> list[Trace]:
    """The trajectories of the run's evaluations. Of a step that a resumed run evaluated again, the later ones."""
    found = sorted(read_traces(run.directory / "traces"), key=lambda trace: trace.began_at)
    by_row = {(trace.origin.step, trace.origin.row): trace for trace in found if trace.origin.validate_}
    return [by_row[place] for place in sorted(by_row)]


@dataclass(slots=True)
class Summaries:
    """Those that an evaluation's trajectories have after the key of the book was said."""

    written: int = 0
    could_hold: int = 0
    """Of these, the ones whose context has the key: no summary before them lost it."""
    hold: int = 0
    """Of these, the ones that have it."""


def summaries(run: Run) -> dict[int, Summaries]:
    """By step of an evaluation."""
    found: defaultdict[int, Summaries] = defaultdict(Summaries)
    for trace in evaluated(run):
        key = KEY.search("\n".join(turn.user.message for turn in trace.turns if turn.user))
        if key is None:
            continue
        said = next(at for at, turn in enumerate(trace.turns) if turn.user and key.group() in turn.user.message)
        has_key = True
        for turn in trace.turns[said + 1 :]:
            if turn.is_summary:
                counts = found[trace.origin.step]
                counts.written += 1
                counts.could_hold += has_key
                has_key = has_key and key.group(1) in turn.content
                counts.hold += has_key
    return dict(found)


def plot(curves: Sequence[Curve], path: Path) -> None:
    """Write a picture: each run as a thin line, and the mean of a strategy's seeds with their range."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for number, (name, own) in enumerate(by_arm(curves).items()):
        colour = f"C{number}"
        for each in own:
            axes.plot(each.tokens, each.means, color=colour, alpha=0.35, linewidth=0.8)
        length = min(len(each.means) for each in own)
        tokens = [statistics.fmean(each.tokens[at] for each in own) for at in range(length)]
        values = [[each.means[at] for each in own] for at in range(length)]
        axes.plot(tokens, [statistics.fmean(value) for value in values], color=colour, linewidth=2, label=name)
        axes.fill_between(tokens, [min(value) for value in values], [max(value) for value in values], alpha=0.15)
    axes.set(xlabel="sampled tokens", ylabel="mean held-out reward", ylim=(0, 1.02))
    axes.legend()
    figure.savefig(path, dpi=150)
