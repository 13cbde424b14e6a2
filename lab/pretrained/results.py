"""Rewards of the raw, the warmed-up and the trained model on the same tasks, with intervals over seeds."""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.table import Table

from lab.demo import resuming
from lab.demo.display import console
from lab.demo.seeds import over_seeds
from lab.pretrained.runs import Run
from mcp_rollout.rollout.evaluation.estimates import wilson
from mcp_rollout.rollout.trace.store import read_traces


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One run: mean rewards of its evaluations by step, and of its batches."""

    run: Run
    held_out: Mapping[int, float]
    tasks: int
    """Of an evaluation."""
    curve: Sequence[float]
    """Mean training rewards."""
    minutes: float
    """verl's time for the steps, without evaluations."""

    @property
    def before(self) -> float:
        """After the warm-up."""
        return self.held_out[min(self.held_out)]

    @property
    def after(self) -> float:
        return self.held_out[max(self.held_out)]

    def record(self) -> dict[str, Any]:
        low, high = wilson(self.after, self.tasks)
        return {
            "setting": self.run.label,
            "seed": self.run.seed,
            "control": self.run.is_control,
            "environment": self.run.environment,
            "tasks": self.tasks,
            "held_out": dict(self.held_out),
            "interval_after": [low, high],
            "curve": list(self.curve),
            "minutes": self.minutes,
        }


def outcome(run: Run) -> Outcome | None:
    """What there is of a run; None where it has not been evaluated yet."""
    rewards: defaultdict[int, dict[int, float]] = defaultdict(dict)
    if not (run.directory / "traces").is_dir():
        return None
    # A resumed run may evaluate a step again: the later trajectories count.
    for trace in sorted(read_traces(run.directory / "traces"), key=lambda trace: trace.began_at):
        if trace.origin.validate_ and trace.reward is not None:
            rewards[trace.origin.step][trace.origin.row] = trace.reward.score
    tasks = max(map(len, rewards.values()), default=0)
    # An evaluation that was cut has fewer.
    whole = {step: statistics.fmean(each.values()) for step, each in sorted(rewards.items()) if len(each) == tasks}
    taken = {step: each for step, each in resuming.logged(run.directory).items() if "critic/score/mean" in each}
    if not whole:
        return None
    return Outcome(
        run=run,
        held_out=whole,
        tasks=tasks,
        curve=[taken[step]["critic/score/mean"] for step in sorted(taken)],
        minutes=sum(each.get("timing_s/step", 0.0) for each in taken.values()) / 60,
    )


def mean_reward(directory: Path) -> float:
    """Of the trajectories of an evaluation; nan where it has none."""
    scores = [trace.reward.score for trace in read_traces(directory) if trace.reward is not None]
    return statistics.fmean(scores) if scores else math.nan


def show(outcomes: Sequence[Outcome], raw: Mapping[int, float], home: Path) -> None:
    """Print what there is so far, run by run and over seeds, and write `results.json` and `curves.png`."""
    table = Table("run", "tasks", "raw", "warmed up", "trained", "95% of tasks", "steps", "minutes")
    arms: defaultdict[str, list[Outcome]] = defaultdict(list)
    for each in outcomes:
        low, high = wilson(each.after, each.tasks)
        table.add_row(
            each.run.name,
            f"{each.tasks}",
            f"{raw[each.run.seed]:.3f}" if each.run.seed in raw else "",
            f"{each.before:.3f}",
            f"{each.after:.3f}",
            f"{low:.2f} to {high:.2f}",
            f"{len(each.curve)}",
            f"{each.minutes:.1f}",
        )
        arms[each.run.name.replace(f"-seed{each.run.seed}", "")].append(each)
    console.print(table)
    table = Table("over seeds", "seeds", "warmed up", "trained", "95% of seeds", "weakest")
    for name, own in arms.items():
        after = [each.after for each in own]
        interval = over_seeds(after)
        table.add_row(
            name,
            f"{len(own)}",
            f"{statistics.fmean(each.before for each in own):.3f}",
            f"{statistics.fmean(after):.3f}",
            f"{interval[0]:.2f} to {interval[1]:.2f}" if interval else "",
            f"{min(after):.3f}",
        )
    console.print(table)
    records = [each.record() for each in outcomes]
    (home / "results.json").write_text(json.dumps({"raw": dict(raw), "runs": records}, indent=2))
    if outcomes:
        _plot(outcomes, home / "curves.png")


def _plot(outcomes: Sequence[Outcome], path: Path) -> None:
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.add_subplot()
    for number, each in enumerate(outcomes):
        style = {"color": "grey"} if each.run.is_control else {"color": f"C{number}"}
        axes.plot(list(each.held_out), list(each.held_out.values()), marker="o", label=each.run.name, **style)
        axes.plot(range(1, len(each.curve) + 1), each.curve, alpha=0.35, linewidth=0.8, **style)
    axes.axhline(1 / 3, linestyle=":", color="black", linewidth=1, label="a blind choice")
    axes.set(xlabel="GRPO step", ylabel="mean reward; thin: of training", ylim=(0, 1.02))
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)
