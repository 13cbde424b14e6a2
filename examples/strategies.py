"""Chains, trees and single turns on a long task, with equal numbers of sampled tokens, on this CPU.

    python examples/strategies.py [--long] [--only tree-1] [--tokens 200000] [--out outputs/strategies]

Every run starts and resumes alone: the same command goes on where it was interrupted, and `--only` takes one run. The
model is warmed up once, on an expert whose decisions rarely fit. `chain-0-control` has a learning rate of zero.
With `--long`, the runs are on days of 41 turns in contexts that hold a quarter of one: compaction with its summaries
trained and masked, cutting, single turns and dropped thinking, each seed with a model of its own and a control.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from demo_experiment.display import console
from demo_experiment.processes import end_on_sigterm
from rich.table import Table
from strategies_experiment.long_days import LongDays
from strategies_experiment.prepare import Plan, prepare
from strategies_experiment.results import Curve, curve, holds_key, plot
from strategies_experiment.runs import COMPARISONS, SEEDS, STRATEGIES, Run, long_runs, train

ROOT = Path(__file__).resolve().parent.parent


def main(arguments: Sequence[str] | None = None) -> None:
    given = _arguments(arguments)
    end_on_sigterm()
    os.chdir(ROOT)
    begin = partial(Run, home=given.out, budget=given.tokens)
    runs = [begin(strategy=strategy, seed=seed) for seed in SEEDS for strategy in STRATEGIES]
    runs.append(begin(strategy="chain", learning_rate=0.0))
    compared = [begin(strategy="chain", label=label, options=options) for label, options in COMPARISONS.items()]
    chosen = runs + (compared if given.comparisons else [])
    runs += compared
    if given.long:
        chosen = runs = [run for seed in SEEDS for run in long_runs(given.out, seed, given.tokens)]
    if given.only is not None:
        chosen = [run for run in runs if run.name == given.only]
        if not chosen:
            names = ", ".join(run.name for run in runs)
            raise SystemExit(f"error: --only: no run {given.only!r}; there are {names}")
    try:
        given.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SystemExit(f"error: --out: {error}") from None
    for run in chosen:
        plan = Plan(expert="depot_long", tasks="depot_long", days=LongDays) if given.long else Plan()
        prepare(run.home, seed=run.seed if given.long else 0, plan=plan, scale=given.warm_up)
        train(run)
    show([found for run in runs if run.directory.is_dir() and (found := curve(run)) is not None], given.out)


def show(curves: Sequence[Curve], home: Path) -> None:
    """Print a table of what there is so far, and write `results.json` and `curves.png`."""
    table = Table("run", "tokens", "steps", "minutes", "before", "after", "lift", "95% interval", "last batches")
    records: dict[str, object] = {}
    for each in curves:
        low, high = each.interval()
        before, after = each.means[0], each.means[-1]
        table.add_row(
            each.run.name,
            f"{each.tokens[-1]:,.0f}",
            f"{each.steps}",
            f"{each.minutes:.1f}",
            f"{before:.3f}",
            f"{after:.3f}",
            f"{each.lift:+.3f}",
            f"{low:+.3f} to {high:+.3f}",
            f"{each.trained:.3f}",
        )
        records[each.run.name] = {
            "tokens": each.tokens,
            "means": each.means,
            "interval": [low, high],
            "turns": each.turns,
            "last_batches": each.trained,
            "steps": each.steps,
            "minutes": each.minutes,
            "summaries_with_key": holds_key(each.run),
        }
    console.print(table)
    if curves:
        (home / "results.json").write_text(json.dumps(records, indent=2))
        plot(curves, home / "curves.png")


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="RUN", help="one run, for example tree-1 or chain-0-control")
    parser.add_argument("--long", action="store_true", help="the long days")
    parser.add_argument("--warm-up", type=float, default=1.0, help="share of the warm-up's steps, below 1 for a try")
    parser.add_argument("--comparisons", action="store_true", help="further settings too, one seed each")
    parser.add_argument(
        "--tokens", type=_positive, default=200_000, help="sampled tokens of a run (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, default=Path("outputs", "strategies"), help="(default: %(default)s)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
