"""Synchronous and asynchronous training side by side, on this CPU: speed in simulated time, and reward by staleness.

    python -m lab.asynchronous [--part speed] [--only RUN] [--scale 1.0] [--smoke] [--out outputs/asynchronous]

Speed: five runs of 12 steps, 16 prompts by 4, with generations of lognormal time (median 4 s, 99th percentile 40 s) and
tools of 0.2 to 2 s, beside the bound of a queue model without any overhead. Reward: the tasks of `demo.py --tasks
state` at staleness 0, 1 and 4, with and without correction, three seeds each, 30 steps.

On two idle cores about 50 minutes for speed, and ten for each of the fifteen runs for reward. `--scale 0.5` has all
simulated times half as long; what this machine takes for training and messages then weighs twice as much, in the
model's bound as well. The stop rule: steps, seeds and settings are those of `lab.asynchronous/runs.py`; no
run is prolonged, repeated or left out for its result. One that verl ends with an error begins once more, and is then
missing in the tables. Every run starts and is kept alone: the same command goes on where it was interrupted. `--smoke`
takes minutes and shows nothing but that it works.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from lab.asynchronous.queue_model import bound
from lab.asynchronous.runs import PROMPTS, SAMPLES, Run, finish, played, reward_runs, speed_runs
from lab.demo.display import console
from lab.demo.processes import end_on_sigterm

ROOT = Path(__file__).resolve().parents[2]
_T95 = 4.303
"""Of Student's distribution with two degrees of freedom: three seeds."""


def main(arguments: Sequence[str] | None = None) -> None:
    given = _arguments(arguments)
    end_on_sigterm()
    os.chdir(ROOT)
    speed, reward = speed_runs(given.out, scale=given.scale), reward_runs(given.out)
    if given.smoke:
        speed, reward = speed_runs(given.out, scale=0.05, steps=4)[:3], []
    parts = {"speed": speed, "reward": reward, "both": [*speed, *reward]}
    for run in parts[given.part]:
        if given.only in (None, run.name):
            finish(run)
    show_speed(speed)
    show_reward(reward)


def show_speed(runs: Sequence[Run]) -> None:
    """Trained tokens beside the model's whose trainer is as fast as in `mcp_sync`, and as fast as in the run itself.

    Where trainer and engine compute on the same cores, the trainer is slower beside the engine than alone. Where the
    engine decodes more slowly than the simulated times, it is shown by how much, and its idle share says little.
    """
    table = Table("mode", "idle", "of model", "tokens/min", "of model", "own trainer", "train s", "slower")
    table.columns[0].no_wrap = True
    (sync, *_) = runs
    if sync.result is None:
        return
    seen, train_s = played(sync), sync.result["train_s"]
    for run in runs:
        if (found := run.result) is None:
            continue
        best, as_here = (
            bound(run.mode, run.staleness, seen, prompts=PROMPTS, samples=SAMPLES, train_s=seconds)
            for seconds in (train_s, found["train_s"])
        )
        table.add_row(
            f"{run.mode} {run.staleness}",
            f"{found['idle']:.0%}",
            f"{best.idle:.0%}",
            f"{found['tokens_per_minute']:,.0f}",
            f"{best.tokens_per_minute:,.0f}",
            f"{as_here.tokens_per_minute:,.0f}",
            f"{found['train_s']:.0f}",
            f"{found['slower']:.1f}",
        )
    console.print(table)


def show_reward(runs: Sequence[Run]) -> None:
    table = Table("arm", "held-out reward", "95% interval", "weakest", "seeds", "staleness")
    arms: dict[str, list[dict[str, object]]] = {}
    for run in runs:
        if (found := run.result) is not None:
            arms.setdefault(run.name.rsplit("-", 1)[0], []).append(found)
    for name, results in arms.items():
        values = [float(str(found["held_out"])) for found in results]
        stale = [statistics.fmean(found["stale"]) for found in results]  # pyright: ignore[reportArgumentType]
        half = _T95 * statistics.stdev(values) / len(values) ** 0.5 if len(values) == 3 else float("nan")
        mean = statistics.fmean(values)
        interval = f"{mean - half:.3f} to {mean + half:.3f}"
        weakest, count = f"{min(values):.3f}", f"{len(values)}"
        table.add_row(name, f"{mean:.3f}", interval, weakest, count, f"{statistics.fmean(stale):.2f}")
    if arms:
        console.print(table)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="RUN", help="one run, for example speed-colocate-1-seed0")
    parser.add_argument("--part", choices=["speed", "reward", "both"], default="both")
    parser.add_argument("--scale", type=float, default=1.0, help="of the simulated times of speed (default: 1)")
    parser.add_argument("--smoke", action="store_true", help="a few short runs, to see that everything starts")
    parser.add_argument("--out", type=Path, default=Path("outputs", "asynchronous"), help="(default: %(default)s)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
