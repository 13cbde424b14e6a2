"""What traces cost: bytes per token, processor time of writing, and how long a write holds the event loop.

    python tests/bench/traces.py DIR [--run]

DIR has traces; they are archived into a temporary directory and measured. With `--run` the expert plays retail with 512
concurrent trajectories, and the share of the time that goes into writing is measured. Prints one JSON object a line.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any

from rollout.trace.archive import archive
from rollout.trace.files import read_traces
from rollout.trace.journal import pieces, to_json
from rollout.trace.record import Trace
from rollout.trace.store import TraceStore

PROFILED = """
import sys, time
from rollout.cli.app import main
from rollout.trace.store import TraceStore

spent = count = 0
original = TraceStore.append
def append(self, trace):
    global spent, count
    began = time.thread_time()
    original(self, trace)
    spent, count = spent + time.thread_time() - began, count + 1
TraceStore.append = append
began, processor = time.perf_counter(), time.process_time()
try:
    main()
finally:
    wall, processor = time.perf_counter() - began, time.process_time() - processor
    shares = {"of_wall": spent / wall, "of_processor": spent / processor}
    print({"records": count, "write_ms": spent / count * 1e3, **shares})
"""


def sizes(traces: list[Trace]) -> dict[str, Any]:
    """Bytes per token of journal and archive, and what archiving takes."""
    segments = [segment for trace in traces for segment in (*trace.earlier, trace)]
    tokens = sum(len(segment.prompt_ids) + len(segment.response_ids) for segment in segments)
    sampled = sum(segment.sampled_tokens for segment in segments)
    with tempfile.TemporaryDirectory() as directory:
        store = TraceStore(directory, archive_bytes=2**62)
        began = time.thread_time()
        for trace in traces:
            store.append(trace)
        written = time.thread_time() - began
        store.close()
        (journal,) = Path(directory).iterdir()
        journal_bytes, began = journal.stat().st_size, time.process_time()
        archived = archive(journal)
        return {
            "trajectories": len(traces),
            "tokens": tokens,
            "sampled_share": sampled / tokens,
            "journal_bytes_per_token": journal_bytes / tokens,
            "archive_bytes_per_token": archived.stat().st_size / tokens,
            "write_ms": written / len(traces) * 1e3,
            "archive_ms": (time.process_time() - began) / len(traces) * 1e3,
            "archive_peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }


def longest_step(trace: Trace, length: int) -> dict[str, Any]:
    """Processor time of `to_json` and of its longest piece for a response of `length` sampled tokens."""
    trace.response_ids, trace.loss_mask = [number % 150_000 for number in range(length)], [1] * length
    trace.logprobs = array("f", [-0.001 * (number % 997) for number in range(length)]).tolist()
    began = time.thread_time()
    to_json(trace)
    whole, longest, began = time.thread_time() - began, 0.0, time.thread_time()
    for _ in pieces(trace):
        longest, began = max(longest, time.thread_time() - began), time.thread_time()
    return {"sampled_tokens": length, "whole_ms": whole * 1e3, "longest_piece_ms": longest * 1e3}


def run() -> str:
    """The share of writing in a run of the expert with 512 concurrent trajectories."""
    with tempfile.TemporaryDirectory() as out:
        options = ["run", "retail", "--engine", "expert", "--split", "train", "-n", "120", "--samples", "2"]
        command = [sys.executable, "-c", PROFILED, *options, "--concurrency", "512", "--out", out]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
        return done.stdout.splitlines()[-1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--run", action="store_true")
    given = parser.parse_args()
    recorded = list(read_traces(given.directory, recursive=True))
    print(json.dumps(sizes(recorded)))  # noqa: T201
    print(json.dumps([longest_step(recorded[0], length) for length in (10_000, 100_000, 1_000_000)]))  # noqa: T201
    if given.run:
        print(run())  # noqa: T201
