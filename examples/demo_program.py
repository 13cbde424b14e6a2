"""Train the demo's tiny policy through openai-agents, unchanged, with verl's GRPO on this CPU.

    python examples/demo_program.py [--seeds 0 1] [--steps 12] [--out outputs/demo-program]

For each seed a warm-up, a training and a control with a learning rate of zero; then a table. Needs `make clients`.
Tasks and settings are those of `examples/demo.py`, but for the number of steps and the customer, whose only message is
in the prompt. Each part is kept: the same command goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from demo_experiment.display import console
from demo_experiment.experiment import COMPARED_STEPS, Experiment, collect, prepare_model, trained
from demo_experiment.openai_agents import LIBRARY, write_environments
from demo_experiment.processes import end_on_sigterm
from rich.table import Table

from rollout.evaluation.estimates import wilson

ROOT = Path(__file__).resolve().parent.parent
STEPS = 12
LEARNING_RATES = {"learning": Experiment.learning_rate, "control": 0.0}


def main(arguments: Sequence[str] | None = None) -> None:
    given = _arguments(arguments)
    if not LIBRARY.is_dir():
        raise SystemExit(f"error: {LIBRARY} is missing: run `make clients`")
    end_on_sigterm()
    os.chdir(ROOT)
    home = given.out.absolute()
    table = Table("run", "held-out before", "after", "95% interval", f"training, first {COMPARED_STEPS} steps", "last")
    for seed in given.seeds:
        for name, learning_rate in LEARNING_RATES.items():
            found = finish(home, f"{name}-seed{seed}", seed, given.steps, learning_rate)
            table.add_row(f"{name}, seed {seed}", *_figures(found))
    console.print(table)
    console.print(f"everything lies in [bold]{home}[/bold]", soft_wrap=True)


def finish(home: Path, name: str, seed: int, steps: int, learning_rate: float) -> dict[str, Any]:
    """Train, unless it is done, and return what `result.json` has."""
    run = home / name
    if not (run / "result.json").exists():
        console.rule(name)
        warmed = warmed_up(home, seed)
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir()
        (run / "model").symlink_to(warmed)
        for each in ("train.parquet", "test.parquet", "tool_config.yaml"):
            (run / each).symlink_to(home / "rows" / each)
        there = {"actor_rollout_ref.rollout.custom.mcp.environments_dir": home / "environments"}
        trained(Experiment(home=run, seed=seed, steps=steps, learning_rate=learning_rate, overrides=there), {})
    return json.loads((run / "result.json").read_text())


def warmed_up(home: Path, seed: int) -> Path:
    """The model that learns to imitate the expert, both through openai-agents."""
    rows, warm = home / "rows", home / f"warm-seed{seed}"
    if not (rows / "tool_config.yaml").exists():  # the last file that is written
        shutil.rmtree(rows, ignore_errors=True)
        rows.mkdir(parents=True)
        collect(rows, environments=write_environments(home / "environments"))
    if not (warm / "done").exists():
        warm.mkdir(exist_ok=True)
        shutil.copy(rows / "sft.jsonl", warm)
        prepare_model(warm, seed)
        (warm / "done").touch()
    return warm / "model"


def _figures(found: dict[str, Any]) -> list[str]:
    (before, of), (after, _) = found["before"]["total"], found["after"]["total"]
    low, high = wilson(after / of, of)
    shares = [f"{before / of:.2f}", f"{after / of:.2f} ({after} of {of})", f"{low:.2f} to {high:.2f}"]
    return [*shares, f"{found['first']:.2f}", f"{found['last']:.2f}"]


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], help="of the warm-up and sampling")
    parser.add_argument("--steps", type=int, default=STEPS, help="GRPO steps (default: %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=Path("outputs/demo-program"), help="directory (default: %(default)s)"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
