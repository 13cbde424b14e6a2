"""Play trajectories under faults, and reconcile what became of them.

    python -m lab.benchmarks.reconcile [--rows 100] [--kills 50] [--changes 5] [--seed 1] [--only LANE] [--page PAGE]

`--rows` is per lane. The run without faults, which the others are compared with, comes first. Exits with 1 where
anything disagrees; the last line then is the command that plays the same again.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from lab.benchmarks.faults.page import write
from lab.benchmarks.reconcile.drive import Settings, play
from lab.benchmarks.reconcile.plan import LANES, Storm
from lab.benchmarks.reconcile.reconcile import Found, reconcile

MARKS = ("<!-- written by lab.benchmarks.reconcile -->\n", "<!-- end of lab.benchmarks.reconcile -->\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100, help="of each lane")
    parser.add_argument("--kills", type=int, default=50, help="processes killed with -9")
    parser.add_argument("--changes", type=int, default=5, help="changes of a server's tools")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--only", action="append", choices=LANES, help="one lane; repeatable")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument(
        "--patience", type=float, default=1.0, help="factor of the bounds on calls and trajectories, for a busy machine"
    )
    parser.add_argument("--out", type=Path, help="keep everything here; by default it is kept where anything disagrees")
    parser.add_argument("--page", type=Path, help="write the figures into this page")
    given = parser.parse_args()
    counts = {"rows": given.rows, "kills": given.kills, "changes": given.changes}
    storm = Storm(seed=given.seed, lanes=tuple(given.only or LANES), **counts)
    folder = given.out or Path(tempfile.mkdtemp(prefix="reconcile-"))
    settings = Settings(concurrency=given.concurrency).patient(given.patience)
    began = time.monotonic()
    for name, plan in (("calm", storm.calm), ("storm", storm)):
        (folder / name).mkdir(parents=True)
        rounds = play(plan, folder / name, settings)
        sys.stderr.write(f"{name}: {rounds} rounds, {time.monotonic() - began:.0f} s\n")
    found = reconcile(folder / "storm", folder / "calm", with_verl=True)
    text = _table(found, rounds=rounds, seconds=time.monotonic() - began, seed=given.seed)
    if given.page:
        write(given.page, text, *MARKS)
    sys.stdout.write(text)
    for problem in found.discrepancies:
        sys.stdout.write(f"DISCREPANCY {problem}\n")
    if not found.discrepancies:
        if given.out is None:
            shutil.rmtree(folder)
        return 0
    only = "".join(f" --only {lane}" for lane in given.only or ())
    sys.stdout.write(f"kept in {folder}; again: python -m lab.benchmarks.reconcile --seed {given.seed} ")
    sys.stdout.write(" ".join(f"--{name} {number}" for name, number in counts.items()))
    sys.stdout.write(f" --concurrency {given.concurrency} --patience {given.patience:g}{only}\n")
    return 1


def _table(found: Found, *, rounds: int, seconds: float, seed: str) -> str:
    rows = [
        ("trajectories", found.trajectories),
        ("of them in a world", found.in_a_world),
        ("of them withdrawn", found.withdrawn),
        ("of them lost with their process", found.lost),
        ("of them without a fault, equal to a run without faults", found.untouched),
        ("calls of the policy that ran", found.calls),
        ("runs, each going on with `--resume`", rounds),
        *((f"fault: {kind}", number) for kind, number in sorted(found.faults.items())),
        *((f"killed: {kind}", number) for kind, number in sorted(found.killed.items())),
        ("**discrepancies**", len(found.discrepancies)),
    ]
    head = f"Seed {seed}, {seconds:.0f} s.\n\n| | |\n|---|---|\n"
    return head + "".join(f"| {name} | {number} |\n" for name, number in rows)


if __name__ == "__main__":
    sys.exit(main())
