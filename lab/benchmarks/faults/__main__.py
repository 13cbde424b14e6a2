"""Run clients under faults and print, or write into a page, what became of their calls.

    python -m lab.benchmarks.faults [--client NAME ...] [--fault NAME ...] [--page docs/reliability.md] [--json FILE]

Each cell is one client with its defaults or its best settings, one fault, and a server of its own. A client whose
environment is missing is left out, and the table says so (`make mcp1 mcp2 verifiers`). Exits with 1 where a run without
faults was not clean: then the other figures say nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from lab.benchmarks.faults.cells import clients, measure
from lab.benchmarks.faults.page import pages, write
from lab.benchmarks.faults.plan import Fault


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--client", action="append", help="default: all")
    parser.add_argument("--fault", action="append", choices=list(Fault), help="default: all")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--jobs", type=int, default=3, help="cells at a time; most of them wait")
    parser.add_argument("--page", type=Path, help="write the tables into this page")
    parser.add_argument("--json", type=Path, help="write all figures, with what was lost and why")
    for name, environment in (("fastmcp", "mcp2"), ("verifiers", "verifiers"), ("openenv", "mcp1")):
        parser.add_argument(f"--{name}", default=f".venv-{environment}/bin/python", help="the peer's interpreter")
    given = parser.parse_args()
    known = clients(*(str(Path(path).absolute()) for path in (given.fastmcp, given.verifiers, given.openenv)))
    if unknown := set(given.client or ()) - set(known):
        parser.error(f"--client: {', '.join(sorted(unknown))}: not one of {', '.join(known)}")
    chosen = [known[name] for name in given.client or known]
    missing = [client.label for client in chosen if not Path(client.python).exists() or not client.version]
    chosen = [client for client in chosen if client.label not in missing]
    cells = measure(chosen, [Fault(name) for name in given.fault or Fault], given.seed, given.jobs)
    if given.json:
        given.json.write_text(json.dumps([dataclasses.asdict(cell) for cell in cells], indent=1))
    versions = {client.label: client.version for client in chosen}
    text = pages(cells, versions, missing, seed=given.seed)
    if given.page:
        write(given.page, text)
    else:
        sys.stdout.write(text)
    return int(not all(cell.figures.is_clean for cell in cells if cell.fault is None))


if __name__ == "__main__":
    sys.exit(main())
