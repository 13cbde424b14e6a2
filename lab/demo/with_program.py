"""Train the demo's tiny policy through openai-agents, unchanged, with verl's GRPO on this CPU.

    python -m lab.demo.with_program [--seeds 0 1] [--steps 10] [--out outputs/demo-program]

For each seed a warm-up, a training and a control with a learning rate of zero; then a table. Needs `make mcp2`.
Tasks and settings are those of `python -m lab.demo --tasks state`, but for the number of steps and the customer, whose
only message is in the prompt. Each part is kept: the same command goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from lab.demo.display import console
from lab.demo.experiment import COMPARED_STEPS, STATE, Experiment, collect, prepare_model
from lab.demo.grpo import logged_steps, train
from lab.demo.openai_agents import LIBRARY, write_environments
from lab.demo.outcomes import summarise
from lab.demo.processes import end_on_sigterm
from mcp_rollout.rollout.evaluation.estimates import wilson
from mcp_rollout.rollout.trace.store import read_traces

ROOT = Path(__file__).resolve().parents[2]
STEPS = 10
LEARNING_RATES = {"learning": Experiment.learning_rate, "control": 0.0}


def main(arguments: Sequence[str] | None = None) -> None:
    given = _arguments(arguments)
    if not LIBRARY.is_dir():
        raise SystemExit(f"error: {LIBRARY} is missing: run `make mcp2`")
    end_on_sigterm()
    os.chdir(ROOT)
    home = given.out.absolute()
    table = Table(
        "run", "held-out tasks served", "95% interval", f"training reward, first {COMPARED_STEPS} steps", "last"
    )
    for seed in given.seeds:
        for name, learning_rate in LEARNING_RATES.items():
            found = finish(home, f"{name}-seed{seed}", seed, given.steps, learning_rate)
            table.add_row(f"{name}, seed {seed}", *_figures(found))
    console.print(table)
    console.print(f"everything lies in [bold]{home}[/bold]", soft_wrap=True)


def finish(home: Path, name: str, seed: int, steps: int, learning_rate: float) -> dict[str, Any]:
    """Train, unless so many steps are done, and return `result.json`. The control's model is that before training."""
    run = home / name
    if not (run / "result.json").exists() or len(json.loads((run / "result.json").read_text())["curve"]) != steps:
        console.rule(name)
        warmed = warmed_up(home, seed)
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir()
        (run / "model").symlink_to(warmed)
        for each in ("train.parquet", "test.parquet", "tool_config.yaml"):
            (run / each).symlink_to(home / "rows" / each)
        environments = {"actor_rollout_ref.rollout.custom.mcp.environments_dir": home / "environments"}
        more = {**environments, "trainer.val_before_train": False}
        train(run, seed=seed, steps=steps, learning_rate=learning_rate, more=more)
        held_out = summarise([trace for trace in read_traces(run / "train" / "traces") if trace.origin.validate_])
        curve = [step["critic/score/mean"] for step in logged_steps(run)]
        (run / "result.json").write_text(json.dumps({"curve": curve, "held_out": held_out.record()}, indent=2))
    return json.loads((run / "result.json").read_text())


def warmed_up(home: Path, seed: int) -> Path:
    """The model that has learnt to imitate the expert, whose conversations are openai-agents' too."""
    rows, warm = home / "rows", home / f"warm-seed{seed}"
    if not (rows / "tool_config.yaml").exists():  # the last file that is written
        shutil.rmtree(rows, ignore_errors=True)
        rows.mkdir(parents=True)
        collect(rows, STATE, environments=write_environments(home / "environments"))
    if not (warm / "done").exists():
        warm.mkdir(exist_ok=True)
        shutil.copy(rows / "sft.jsonl", warm)
        prepare_model(warm, seed, STATE.warm_up)
        (warm / "done").touch()
    return warm / "model"


def _figures(found: dict[str, Any]) -> list[str]:
    (served, of), curve = found["held_out"]["total"], found["curve"]
    low, high = wilson(served / of, of)
    ends = (curve[:COMPARED_STEPS], curve[-COMPARED_STEPS:])
    rewards = [f"{statistics.fmean(each):.2f}" for each in ends]
    return [f"{served / of:.2f} ({served} of {of})", f"{low:.2f} to {high:.2f}", *rewards]


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], help="of the warm-up and sampling")
    parser.add_argument("--steps", type=int, default=STEPS, help="GRPO steps (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("outputs/demo-program"), help="default: %(default)s")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
