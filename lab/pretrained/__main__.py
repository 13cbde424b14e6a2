"""A pretrained model at a desk: raw, warmed up, and trained by verl's GRPO over an MCP server, on this CPU.

    python -m lab.pretrained [--world table] [--setting half] [--seeds 0 1 2] [--only half-seed1] [--out DIR]
    python -m lab.pretrained --choose        # the settings, one seed each, on the validation wordings

`make model` writes the model. The desk is a server of ours; `--world table` asks the same over `mcp-server-sqlite`,
which `make third-party` installs, with tasks from a file. Test wordings, items and numbers share no keyword with
training or validation. Each seed is that of the warm-up's order, of GRPO's order of rows, and of all sampling; the
control trains the first seed with a learning rate of zero. Every run starts and is kept alone: the same command goes on
where it was interrupted, from the last checkpoint. `--smoke` takes minutes and shows nothing but that everything runs.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lab.demo.display import console
from lab.demo.processes import end_on_sigterm
from lab.pretrained.prepare import WORLDS, evaluated
from lab.pretrained.results import mean_reward, outcome, show
from lab.pretrained.runs import Run, train
from lab.pretrained.settings import CHOSEN, SEEDS, SETTINGS

ROOT = Path(__file__).resolve().parents[2]
HELD_OUT, SMOKE_HELD_OUT = 90, 6
"""Held-out tasks."""


def main(arguments: Sequence[str] | None = None) -> None:
    given = _arguments(arguments)
    end_on_sigterm()
    os.chdir(ROOT)
    runs = _runs(given)
    chosen = [run for run in runs if given.only in (None, run.name)]
    if not chosen:
        raise SystemExit(f"error: --only: no run {given.only!r}; there are {', '.join(run.name for run in runs)}")
    if not (given.model / "config.json").is_file():
        raise SystemExit(f"error: --model: {given.model} has no config.json; write it with `make model`")
    try:
        given.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SystemExit(f"error: --out: {error}") from None
    held_out = SMOKE_HELD_OUT if given.smoke else HELD_OUT
    runs[0].world.prepare(held_out)
    raw: dict[int, float] = {}
    for run in chosen:
        if run.seed not in raw:
            console.rule(f"raw, seed {run.seed}")
            raw[run.seed] = mean_reward(evaluated(run.world, run.home, run.model, run.environment, run.seed, held_out))
        train(run)
        show([found for each in runs if (found := outcome(each)) is not None], raw, given.out)


def _runs(given: argparse.Namespace) -> list[Run]:
    settings = SETTINGS
    if given.smoke:
        settings = {name: replace(each, rows=4, samples=2, steps=2) for name, each in SETTINGS.items()}
    world = WORLDS[given.world](given.out)
    own = Run(
        home=given.out, world=world, model=given.model, label=given.setting, setting=settings[given.setting], seed=0
    )
    if given.choose:
        begun = replace(own, seed=given.seeds[0], is_validated=True)
        return [replace(begun, label=name, setting=setting) for name, setting in settings.items()]
    seeds = [replace(own, seed=seed) for seed in given.seeds]
    return [*seeds, replace(seeds[0], is_control=True)]


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", choices=list(WORLDS), default="desk", help="(default: %(default)s)")
    parser.add_argument("--choose", action="store_true", help="train each setting, and evaluate on validation wordings")
    parser.add_argument("--setting", choices=list(SETTINGS), default=CHOSEN, help="(default: %(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS), help="(default: 0 1 2)")
    parser.add_argument("--only", metavar="RUN", help="one run, for example half-seed1 or half-seed0-control")
    parser.add_argument("--smoke", action="store_true", help="two small steps, to see that everything runs")
    parser.add_argument("--model", type=Path, default=Path("outputs", "smollm2"), help="(default: %(default)s)")
    parser.add_argument("--out", type=Path, help="(default: outputs/pretrained, with the world's name and -smoke)")
    given = parser.parse_args(arguments)
    place = "pretrained" if given.world == "desk" else f"pretrained-{given.world}"
    given.out = given.out or Path("outputs", f"{place}-smoke" if given.smoke else place)
    return given


if __name__ == "__main__":
    main()
