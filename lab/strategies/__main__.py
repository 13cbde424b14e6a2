"""Chains, trees and single turns on a long task, with equal numbers of sampled tokens, on this CPU.

    python -m lab.strategies [--days long] [--only tree-1] [--tokens 200000] [--out outputs/strategies]

Every run starts and resumes alone: the same command goes on where it was interrupted, and `--only` takes one run. Each
seed has a model of its own, warmed up on an expert whose decisions rarely fit. `chain-0-control` has a learning rate of
zero. `--days retry` compares advantages by turn with those by trajectory where states are met again. `--days skilled`
begins with a model that decides well, to see which updates of single turns break it. With `--days long`
the runs are on days of 41 turns in contexts that hold a quarter of one: compaction with its summaries trained and
masked, cutting, single turns and dropped thinking, each seed with a control.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path

from rich.table import Table

from lab.demo.display import console
from lab.demo.processes import end_on_sigterm
from lab.demo.seeds import over_seeds
from lab.strategies.prepare import PLANS, Plan, prepare, prepare_rows
from lab.strategies.results import Curve, by_arm, curve, differences, plot, summaries
from lab.strategies.runs import RETRY, compared, long_runs, retry_runs, short_runs, skilled_runs, train

ROOT = Path(__file__).resolve().parents[2]
RUNS = {"short": short_runs, "retry": retry_runs, "skilled": skilled_runs, "long": long_runs}


def main(arguments: Sequence[str] | None = None) -> None:
    given = _arguments(arguments)
    end_on_sigterm()
    os.chdir(ROOT)
    runs = RUNS[given.days](given.out, given.tokens)
    chosen = runs
    if given.days == "short":
        runs = runs + compared(given.out, given.tokens)
        chosen = runs if given.comparisons else chosen
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
        prepare(run.home, seed=run.seed, plan=PLANS.get(given.days, Plan()), scale=given.warm_up)
        if run.rows:
            prepare_rows(run.home / run.rows, RETRY)
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
            f"{each.evaluated[-1]}",
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
            "interval_of_lift_over_tasks": [low, high],
            "turns": each.turns,
            "last_batches": each.trained,
            "steps": each.evaluated[-1],
            "minutes": each.minutes,
            "summaries": {step: asdict(counts) for step, counts in summaries(each.run).items()},
        }
    console.print(table)
    if curves:
        _show_arms(by_arm(curves))
        (home / "results.json").write_text(json.dumps(records, indent=2))
        plot(curves, home / "curves.png")


def _show_arms(arms: dict[str, list[Curve]]) -> None:
    """Print what the seeds of each arm say together, and how arms differ in the same seeds."""
    table = Table("over seeds", "seeds", "after", "95%", "weakest")
    for name, own in arms.items():
        after = [each.means[-1] for each in own]
        mean = f"{statistics.fmean(after):.3f}"
        table.add_row(name, f"{len(own)}", mean, _interval(over_seeds(after)), f"{min(after):.3f}")
    console.print(table)
    table = Table("difference", "seeds", "at equal tokens", "mean", "95%", "at equal steps", "mean", "95%")
    for one, other in combinations(arms, 2):
        found = differences(arms[other], arms[one])
        if found is None:
            continue
        cells = [(f"{each.at:,.0f}", f"{each.mean:+.3f}", _interval(each.interval)) for each in found]
        table.add_row(f"{other} - {one}", f"{len(found[0].by_seed)}", *cells[0], *cells[1])
    console.print(table)


def _interval(found: tuple[float, float] | None) -> str:
    return f"{found[0]:+.3f} to {found[1]:+.3f}" if found else ""


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="RUN", help="one run, for example tree-1 or chain-0-control")
    parser.add_argument("--days", choices=list(RUNS), default="short", help="(default: %(default)s)")
    parser.add_argument("--warm-up", type=float, default=1.0, help="share of the warm-up's steps, below 1 for a try")
    parser.add_argument("--comparisons", action="store_true", help="further settings too, one seed each")
    parser.add_argument(
        "--tokens", type=_positive, default=200_000, help="sampled tokens of a run (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, default=Path("outputs", "strategies"), help="(default: %(default)s)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
