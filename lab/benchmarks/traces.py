"""`benchmarks trace`: what writing, storing and looking through traces costs, beside plain JSON.

    python -m lab.benchmarks.traces RECORDS

Plays retail's longest tasks, writes what was recorded RECORDS times, and looks through it. CPU time; the peers are
pydantic's JSON of the same record in one write, and a reader that parses each line. Prints one JSON object. What a
token takes on disk depends on the traces: `lab/benchmarks/trace_sizes.py` measures given ones.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
from pydantic import TypeAdapter

from lab.benchmarks.loop import Retail
from lab.benchmarks.runs import print_figures
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.store import TraceStore

_PLAYED = 24
_ADAPTER = TypeAdapter(Trace)
_READER = """
import json, pathlib, sys
for path in pathlib.Path(sys.argv[1]).glob("*.jsonl"):
    for line in path.open():
        json.loads(line)
"""
_MEASURED = """
import json, resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)
if done.returncode:
    sys.exit(f"{sys.argv[1:]} ended with status {done.returncode}")
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps({"cpu_s": round(used.ru_utime + used.ru_stime, 2), "peak_mib": round(used.ru_maxrss / 1024, 1)}))
"""
"""In a small process, since a child's peak memory counts from the fork on."""
_TRACE = ("-m", "mcp_rollout", "trace")
_DIR = "DIR"
"""Stands for the directory."""
COMMANDS = {
    "ls, making the index": (*_TRACE, "ls", _DIR),
    "ls": (*_TRACE, "ls", _DIR),
    "ls --where --sort": (*_TRACE, "ls", _DIR, "--where", "reward >= 0.5 and turns > 5", "--sort=-turns,task"),
    "stats": (*_TRACE, "stats", _DIR),
    "show --worst": (*_TRACE, "show", _DIR, "--worst"),
    "show, all": (*_TRACE, "show", _DIR, "--where", "reward >= 0"),
    "each line parsed": ("-c", _READER, _DIR),
}


async def played() -> list[Trace]:
    found: list[Trace] = []
    async with Retail.opened(_PLAYED) as retail:
        await retail.play(_PLAYED, concurrency=_PLAYED, archive_bytes=1 << 40, finished=found.append)
    return found


def write(traces: Sequence[Trace], directory: Path, records: int) -> dict[str, float]:
    """Writes the records, in turns with the peer; medians in milliseconds of CPU time per record."""
    spent: tuple[list[float], list[float]] = [], []
    store = TraceStore(directory, archive_bytes=1 << 40)
    # Unbuffered, as the store's journal is.
    with (directory.parent / "peer.jsonl").open("wb", buffering=0) as file:
        for number in range(records):
            trace = traces[number % len(traces)]
            trace.id = uuid4().hex
            began = time.thread_time()
            store.append(trace)
            middle = time.thread_time()
            file.write(_ADAPTER.dump_json(trace) + b"\n")
            spent[0].append(middle - began)
            spent[1].append(time.thread_time() - middle)
    store.close()
    ours, peer = (1e3 * statistics.median(each) for each in spent)
    return {"write_ms": round(ours, 3), "pydantic_ms": round(peer, 3), "ratio": round(ours / peer, 3)}


def commands(directory: Path) -> dict[str, dict[str, float]]:
    """CPU seconds and peak memory of each command."""
    found: dict[str, dict[str, float]] = {}
    for name, argv in COMMANDS.items():
        words = [str(directory) if word == _DIR else word for word in argv]
        measured = [sys.executable, "-c", _MEASURED, sys.executable, *words]
        done = subprocess.run(measured, capture_output=True, text=True, check=True)
        found[name] = json.loads(done.stdout)
    return found


def measure(records: int) -> dict[str, Any]:
    traces = anyio.run(played)
    each = [len(part.prompt_ids) + len(part.response_ids) for trace in traces for part in (*trace.earlier, trace)]
    tokens = sum(each) * records // len(traces)
    with tempfile.TemporaryDirectory() as home:
        directory = Path(home) / "traces"
        directory.mkdir()
        written = write(traces, directory, records)
        return {"records": records, "tokens_each": tokens // records, **written, "commands": commands(directory)}


if __name__ == "__main__":
    print_figures(lambda: measure(int(sys.argv[1])))
