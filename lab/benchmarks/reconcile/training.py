"""The demo's training with a fault in every tenth call of its servers, and one agent worker killed.

    python -m lab.benchmarks.reconcile.training --faults 1 [--seed 0] [--steps 30] [--share 0.1] [--out DIR]

As `python -m lab.demo --tasks state`, whose model, warm-up and settings it takes; the held-out rows are played under
faults, too. Prints the mean held-out reward before and after, and the interval of the difference over the rows.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import yaml

from lab.demo.experiment import COMPARED_STEPS, STATE, collect, prepare_model
from lab.demo.grpo import logged_steps, train
from lab.worlds.copies import raw_environment
from mcp_rollout.rollout.evaluation.comparison import paired
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.store import read_traces

ROOT = Path(__file__).parents[3]
_POLL_S = 1.0
_BEGINNINGS = 8
"""About every third one ends in the preflight."""


def write_environment(folder: Path, seed: str, share: float) -> None:
    """The demo's environment, each world with processes of its own that break."""
    folder.mkdir(parents=True, exist_ok=True)
    found = raw_environment("shop")
    for server, entry in found["servers"].items():
        _, module, *more = entry["args"]
        script = str(Path(__file__).with_name("faulty_server.py"))
        args = [script, f"{seed}/{server}", str(share), module, *more]
        entry |= {"args": args, "scope": "process", "start": "fork"}
    found["limits"]["attempts"] = 1
    (folder / "shop.yaml").write_text(yaml.safe_dump(found))


def kill_a_worker(home: Path, after: int) -> None:
    """Kill one agent worker of this training once so many steps are logged."""
    while len(logged_steps(home)) < after:
        time.sleep(_POLL_S)
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if "AgentLoopWorker" in " ".join(process.cmdline()):
                process.kill()
                print(f"killed {process.pid}, an agent worker, after step {after}")
                return


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", default="1", help="seed of the faults")
    parser.add_argument("--share", type=float, default=0.1, help="of the servers' calls that break")
    parser.add_argument("--seed", type=int, default=0, help="of model, warm-up, rows and sampling, as the demo's")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path("outputs/faults"))
    given = parser.parse_args()
    os.chdir(ROOT)
    home, environments = given.out / time.strftime("%Y%m%d-%H%M%S"), given.out / "environments"
    home.mkdir(parents=True)
    write_environment(environments, given.faults, given.share)
    collect(home, STATE)
    prepare_model(home, given.seed, STATE.warm_up)
    threading.Thread(target=kill_a_worker, args=(home, given.steps // 2), daemon=True).start()
    mcp = "actor_rollout_ref.rollout.custom.mcp"
    # A trajectory makes six calls or more, its harness's among them: half of them lose their world.
    more = {f"{mcp}.environments_dir": environments.absolute(), f"{mcp}.max_failed_share": 0.9}
    for left in reversed(range(_BEGINNINGS)):
        try:
            train(home, seed=given.seed, steps=given.steps, learning_rate=1.5e-3, more=more)
            break
        except SystemExit:
            # The trajectory that the preflight plays breaks as others do, and then no training begins.
            if not left or any((home / "train" / "traces").glob("*.jsonl")):
                raise
    traces = list(read_traces(home / "train" / "traces"))
    held_out = [trace for trace in traces if trace.origin.validate_]
    steps = sorted({trace.origin.step for trace in held_out})
    before, after = (rewards(trace for trace in held_out if trace.origin.step == at) for at in (steps[0], steps[-1]))
    rows = sorted(before.keys() & after.keys())
    found = paired([before[row] for row in rows], [after[row] for row in rows], most=1.0)
    curve = [step["critic/score/mean"] for step in logged_steps(home)]
    withdrawn = sum(trace.is_withdrawn for trace in traces)
    print(f"{len(traces)} trajectories, {withdrawn} withdrawn")
    print(f"training: {curve[:COMPARED_STEPS]} to {curve[-COMPARED_STEPS:]}")
    change = f"{found.difference:+.3f} [{found.low}, {found.high}]"
    print(f"held out, {len(rows)} rows: {found.a:.3f} to {found.b:.3f}, {change}")
    return 0


def rewards(traces: Any) -> dict[int, float]:
    """The reward of each row that was not withdrawn."""
    found: dict[int, float] = {}
    trace: Trace
    for trace in traces:
        if trace.reward is not None and not trace.is_withdrawn:
            found[trace.origin.row] = trace.reward.score
    return found


if __name__ == "__main__":
    sys.exit(main())
