"""What looking through many traces takes: each filter of the index, on made-up trajectories.

    python -m lab.benchmarks.trace_index [--entries 100000]

Filters are timed with sorting and the first 1,000 entries read, in processor time; with them go the growth of memory
while all entries stream, and the time to bring the index up to date. `python -m lab.benchmarks trace` measures the
commands. Prints one JSON object a line.
"""

# pyright: basic, reportArgumentType=false

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from trace_samples import archived, recorded_trace

from mcp_rollout.rollout.environment.task import Origin
from mcp_rollout.rollout.trace.events import Mark, MarkKind
from mcp_rollout.rollout.trace.index import FILE
from mcp_rollout.rollout.trace.reader import Traces
from mcp_rollout.rollout.trace.record import Reward, StopReason, Trace
from mcp_rollout.rollout.trace.store import TraceStore

TOOLS = ("get_order", "cancel_order", "find_user", "return_items", "calculate")
FILTERS = {
    "environment": "environment = 'retail'",
    "task": "task = 'task-0042'",
    "step": "step BETWEEN 40 AND 60",
    "split": "split = 'test'",
    "reward": "reward < 0.5",
    "stop reason": "stop_reason = 'turn_limit'",
    "mark": "marks LIKE '%\"void\"%'",
    "tool": "calls LIKE '%\"cancel_order\"%'",
    "error": "errors LIKE '%\"cancel_order\"%'",
    "failure": "error LIKE '%timed out%'",
    "first 200 characters": "text LIKE '%word 4321 %'",
    "all of them": "environment = 'retail' AND step > 10 AND reward < 0.5 AND calls LIKE '%\"cancel_order\"%'",
}


def made_up(number: int, draw: random.Random) -> Trace:
    trace = recorded_trace(f"{draw.getrandbits(128):032x}")
    prompt = ({"role": "user", "content": f"word {number} " + "and more of what is asked for " * 10},)
    values = {"environment": ("retail", "calculator")[number % 2], "task": f"task-{number % 500:04d}", "prompt": prompt}
    trace.task = trace.task.model_copy(update=values)
    trace.messages[0] = prompt[0]
    trace.origin = Origin(row=number % 500, sample=number % 8, step=number // 1000, split=("train", "test")[number % 2])
    trace.reward = Reward(score=draw.random(), parts={"database": draw.random()})
    event = trace.turns[0].tools[0]
    event.name, event.is_error = draw.choice(TOOLS), draw.random() < 0.1
    if draw.random() < 0.1:
        trace.stop_reason = StopReason.TURN_LIMIT
    if draw.random() < 0.05:
        trace.turns[0].marks.append(Mark(kind=MarkKind.VOID))
    if draw.random() < 0.02:
        trace.fail("call_timeout", "retail/get_order: timed out")
    return trace


def filters(entries: int) -> Iterator[dict[str, Any]]:
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as home:
        for start in range(0, entries, 10_000):
            traces = (made_up(number, draw) for number in range(start, min(start + 10_000, entries)))
            archived(Path(home), f"{start:08d}", traces)
        built = _processor_ms(lambda: Traces(home).refresh())
        with Traces(home) as traces:
            size = (Path(home) / FILE).stat().st_size
            yield {"entries": traces.count(), "index_s": built / 1e3, "index_kb_per_entry": size / entries / 1e3}
            yield {"refresh_ms": _processor_ms(traces.refresh)}
            store = TraceStore(home)
            for number in range(100):
                store.append(made_up(number, draw))
            yield {"refresh_after_100_more_ms": _processor_ms(traces.refresh)}
            for name, where in FILTERS.items():
                count = traces.count(where)
                times = [_processor_ms(lambda where=where: _first(traces, where)) for _ in range(5)]
                yield {"filter": name, "found": count, "ms": sorted(times)[2], "longest_ms": max(times)}
            before, highest, streamed = _memory_mib(), 0.0, 0
            for streamed, _ in enumerate(traces.entries(sort=["-reward"]), 1):
                if streamed % 1000 == 1:
                    highest = max(highest, _memory_mib())
            yield {"streamed": streamed, "more_memory_mib": highest - before}


def _first(traces: Traces, where: str) -> None:
    list(traces.entries(where=where, sort=["-reward", "task"], limit=1000))


def _processor_ms(action: Callable[[], object]) -> float:
    began = time.process_time()
    action()
    return (time.process_time() - began) * 1e3


def _memory_mib() -> float:
    """Memory of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=100_000)
    for line in filters(parser.parse_args().entries):
        print(json.dumps(line), flush=True)
