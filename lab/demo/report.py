"""Write the demo's measured results into its docs: a table, and a picture of the learning curves.

    python -m lab.demo.report [RUN ...]

Each RUN is a directory that `python -m lab.demo --out RUN` wrote, on held-out tasks in which wish and state decide;
their results replace those in docs/demo_results.json.
Without one, table and picture are made again from that file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.demo.display import learning_curves
from lab.demo.experiment import WISH
from lab.demo.outcomes import Served

DOCS = Path(__file__).resolve().parents[2] / "docs"
BEGIN, END = "<!-- results, by lab/demo/report.py -->\n", "<!-- end of results -->\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUN")
    runs: list[Path] = parser.parse_args(arguments).runs
    file = DOCS / "demo_results.json"
    if runs:
        results = [json.loads((run / "result.json").read_text()) for run in runs]
        for run, result in zip(runs, results, strict=True):
            if result["held_out_environment"] != WISH.fitting:
                raise SystemExit(
                    f"error: {run}: of {result['held_out_environment']}, and the table is of {WISH.fitting}"
                )
        results.sort(key=lambda result: (result["learning_rate"] == 0, result["seed"]))
        lines = ",\n".join(json.dumps(result) for result in results)
        file.write_text(f"[\n{lines}\n]\n")
    results = json.loads(file.read_text())
    page = DOCS / "demo.md"
    page.write_text(with_table(page.read_text(), results))
    learning_curves(
        {name(result): result["curve"] for result in results},
        WISH.blind_reward,
        control={name(result) for result in results if result["learning_rate"] == 0},
        path=DOCS / "demo.svg",
    )
    sys.stdout.write(f"{page}, {file} and {DOCS / 'demo.svg'}: {len(results)} runs\n")


def with_table(page: str, results: Sequence[dict[str, Any]]) -> str:
    """Replace the table in the page's text.

    Raises:
        ValueError: the page has no marks where the table begins and ends.
    """
    before, found, rest = page.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"the table begins and ends at the lines {BEGIN!r} and {END!r}")
    return before + found + table(results) + ended + after


def table(results: Sequence[dict[str, Any]]) -> str:
    """Held-out tasks served, in Markdown: a row per run, shares before → after."""
    kinds = list(results[0]["after"]["by_kind"])
    heads = ["run", *kinds, "all, 95% interval after", "ended by a token limit", "in a loop"]
    heads += ["training reward", "minutes"]
    rows = [heads, ["---"] * len(heads)]
    for result in results:
        old, new = result["before"], result["after"]
        after = served(new["total"])
        low, high = after.interval
        rows.append(
            [
                name(result),
                *(change(old["by_kind"][kind], new["by_kind"][kind]) for kind in kinds),
                f"{change(old['total'], new['total'])} ({low:.2f} to {high:.2f})",
                *(f"{old[ending]:.1%} → {new[ending]:.1%}" for ending in ("token_limit", "looping")),
                f"{result['first']:.2f} → {result['last']:.2f}",
                f"{sum(result['seconds'].values()) / 60:.1f}",
            ]
        )
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def name(result: dict[str, Any]) -> str:
    return "control" if result["learning_rate"] == 0 else f"seed {result['seed']}"


def served(counts: Sequence[int]) -> Served:
    count, of = counts
    return Served(count=count, of=of)


def change(before: Sequence[int], after: Sequence[int]) -> str:
    return f"{served(before).share:.2f} → {served(after).share:.2f}"


if __name__ == "__main__":
    main()
