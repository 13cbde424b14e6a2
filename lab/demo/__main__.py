"""Train a tiny policy to use MCP tools better, with verl's GRPO, on this CPU.

    python -m lab.demo [--seed 0] [--steps 45] [--control] [--validation] [--tasks state] [--out DIR]

Every step is a command that you can type yourself, and is printed. `--control` trains with a learning rate of zero; its
curve has to stay flat. With `--tasks state` the order's state alone decides, and the customer's words say nothing.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.columns import Columns
from rich.panel import Panel
from rich.table import Table

from lab.demo.display import chart, console, picture
from lab.demo.experiment import COMPARED_STEPS, TASKS, Experiment, Result, learn
from lab.demo.outcomes import Outcomes, summarise
from lab.demo.processes import command, end_on_sigterm
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.store import read_traces
from mcp_rollout.rollout.trace.view import render

ROOT = Path(__file__).resolve().parents[2]
EXPERT_ROWS = 6


def main(arguments: Sequence[str] | None = None) -> None:
    given = _arguments(arguments)
    end_on_sigterm()
    os.chdir(ROOT)
    name = "control" if given.control else "demo"
    home = given.out or Path("outputs", name, time.strftime("%Y%m%d-%H%M%S"))
    home.mkdir(parents=True, exist_ok=True)
    tasks = TASKS[given.tasks]
    experiment = Experiment(home=home, tasks=tasks, seed=given.seed, steps=given.steps, is_validated=given.validation)

    if given.control:
        console.rule("The same experiment with a learning rate of zero")
        experiment = replace(experiment, learning_rate=0.0)
    else:
        console.rule("1. An expert plays all of `retail`, over MCP: 18 tools, a customer, up to 15 turns")
        show_expert(home)
        console.rule("2. A short slice of it: an expert to imitate, a tiny model to warm up, GRPO with verl")
    result = learn(experiment)
    console.rule("What was learnt" if not given.control else "Nothing may have been learnt")
    show(result, home, tasks.blind_reward)


def show_expert(home: Path) -> None:
    """Play retail with the expert, and show its longest trajectory (15 turns, thinking included)."""
    command("run", "retail", "--engine", "expert", "-n", str(EXPERT_ROWS), "--out", home / "retail")
    longest = max(read_traces(home / "retail"), key=lambda trace: len(trace.turns))
    command("trace", "show", home / "retail", longest.id[:12])


def show(result: Result, home: Path, blind: float) -> None:
    console.print(chart(result.curve, blind))
    before, after = result.held_out
    table = Table("mean reward", "before", "after", "change")
    training = (f"training, {COMPARED_STEPS} steps", result.first, result.last)
    for what, earlier, later in (training, ("held-out", before, after)):
        table.add_row(what, f"{earlier:.3f}", f"{later:.3f}", f"{later - earlier:+.3f}")
    console.print(table)
    console.print(outcome_table(summarise(result.before), summarise(result.after)))
    show_one_order(result)
    picture(result.curve, blind, held_out=result.held_out, path=home / "curve.png")
    console.print("seconds: " + ", ".join(f"{name} {seconds:.0f}" for name, seconds in result.seconds.items()))
    console.print(f"everything lies in [bold]{home}[/bold]: curve.png, result.json, the expert's traces in expert/,")
    console.print("the training's in train/traces/, the model that it began with in model/, verl's output in train.log")
    console.print("why held-out orders failed, and what training did about such errors, in the terminal and as a page:")
    for name in ("explain", "view"):
        console.print(f"[bold].venv/bin/mcp-rollout trace {name} {home / 'train' / 'traces'}[/bold]")


def outcome_table(before: Outcomes, after: Outcomes) -> Table:
    """Held-out tasks with the full reward by state and wish, with 95% intervals, and how trajectories ended."""
    table = Table("held-out", "before", "after", "95% interval")
    for name, old, new in (
        *((kind, before.by_kind[kind], after.by_kind[kind]) for kind in after.by_kind),
        ("all", before.total, after.total),
    ):
        low, high = new.interval
        table.add_row(
            name, f"{old.share:.2f}", f"{new.share:.2f} ({new.count} of {new.of})", f"{low:.2f} to {high:.2f}"
        )
    for name, old, new in (
        ("ended by a token limit", before.token_limit, after.token_limit),
        ("ended in a loop", before.looping, after.looping),
    ):
        table.add_row(name, f"{old:.1%}", f"{new:.1%}", "")
    return table


def show_one_order(result: Result) -> None:
    """Show the first held-out order whose reward improved, before and after, and count improved and worsened ones."""
    pairs = list(zip(result.before, result.after, strict=True))
    better = [(old, new) for old, new in pairs if _score(old) < _score(new)]
    worse = sum(_score(old) > _score(new) for old, new in pairs)
    console.print(f"of {len(pairs)} held-out orders {len(better)} went better than before and {worse} went worse")
    if better:
        old, new = better[0]
        width = max(60, console.width // 2 - 2)
        sides = [Panel(render(old), title="before", width=width), Panel(render(new), title="after", width=width)]
        console.print(Columns(sides))


def _score(trace: Trace) -> float:
    return trace.reward.score if trace.reward else 0.0


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    decides = "what decides: wish and state together, or the state alone (default: %(default)s)"
    seeded = "of the model, the warm-up, the order of the rows and sampling"
    parser.add_argument("--seed", type=int, default=0, help=seeded)
    parser.add_argument("--steps", type=int, help="GRPO steps (default: 45, and 30 with --tasks state)")
    parser.add_argument("--control", action="store_true", help="train with a learning rate of zero")
    parser.add_argument(
        "--validation", action="store_true", help="serve validation tasks, for choosing settings, not the held-out ones"
    )
    parser.add_argument("--tasks", choices=TASKS, default="wish", help=decides)
    parser.add_argument("--out", type=Path, help="directory to write (default: a new one in outputs)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
