"""Train the demo's tiny policy with AReaL's own trainer on this CPU, and again with a learning rate of zero.

    python -m lab.demo.with_areal [--seed 0] [--steps 30] [--model HOME] [--only learning|control] [--out DIR]

Needs the environment of `make sglang`. The warm-up is that of `python -m lab.demo --tasks state`; `--model` takes the
directory of an earlier run instead.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from lab.demo.areal import ArealRun
from lab.demo.display import chart, console
from lab.demo.experiment import COMPARED_STEPS, STATE, Experiment, collect, prepare_model

ROOT = Path(__file__).resolve().parents[2]
LEARNING_RATES = {"learning": Experiment.learning_rate, "control": 0.0}


def main(arguments: Sequence[str] | None = None) -> None:
    given = _arguments(arguments)
    os.chdir(ROOT)
    out = (given.out or Path("outputs", "areal", time.strftime("%Y%m%d-%H%M%S"))).absolute()
    out.mkdir(parents=True, exist_ok=True)
    home = given.model.absolute() if given.model else out
    if given.model is None:
        console.rule("A blind expert to imitate, and a tiny model to warm up")
        collect(home, STATE)
        prepare_model(home, given.seed, STATE.warm_up)
    for name, learning_rate in LEARNING_RATES.items():
        if given.only not in (None, name):
            continue
        console.rule(f"{given.steps} steps of GRPO with AReaL, learning rate {learning_rate}")
        began = time.monotonic()
        run = ArealRun(home=home, out=out / name, steps=given.steps, learning_rate=learning_rate, seed=given.seed)
        curve = run.train()
        first, last = statistics.fmean(curve[:COMPARED_STEPS]), statistics.fmean(curve[-COMPARED_STEPS:])
        console.print(chart(curve, STATE.blind_reward))
        console.print(f"mean reward, first {COMPARED_STEPS} steps {first:.3f}, last {COMPARED_STEPS} steps {last:.3f}")
        record = {"seed": given.seed, "learning_rate": learning_rate, "curve": curve, "first": first, "last": last}
        record |= {"seconds": time.monotonic() - began}
        (out / f"{name}.json").write_text(json.dumps(record, indent=2))
    console.print(
        f"everything lies in [bold]{out}[/bold]; the traces are in learning/traces and control/traces", soft_wrap=True
    )


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the model, the warm-up and sampling")
    parser.add_argument("--steps", type=int, default=30, help="GRPO steps (default: %(default)s)")
    parser.add_argument("--model", type=Path, help="a directory with model, train.parquet and tool_config.yaml")
    parser.add_argument("--only", choices=LEARNING_RATES, help="one of the two runs")
    parser.add_argument("--out", type=Path, help="directory to write (default: a new one in outputs)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
