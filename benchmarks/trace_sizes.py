"""What traces cost: bytes per token, processor time of writing, and how long a write holds the event loop.

    python -m benchmarks.trace_sizes DIR [--turns 14] [--qwen qwen.tiktoken]

DIR has traces; they are archived into a temporary directory and measured. With `--qwen` the ids of an engine over bytes
are replaced by those of Qwen's tokenizer (`pip download --no-deps dashscope` has the file; needs `tiktoken`). Prints
one JSON object a line.
"""

# tiktoken is installed for this alone.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import argparse
import json
import random
import resource
import tempfile
import time
from array import array
from itertools import groupby
from pathlib import Path
from typing import Any

from rollout.trace.archive import archive
from rollout.trace.journal import pieces, to_json
from rollout.trace.record import Trace
from rollout.trace.store import TraceStore, read_traces

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen's tokenizers split text."""
FIRST_SPECIAL = 151_643


class Qwen:
    """Traces over bytes as a model with Qwen's tokenizer would have them, with drawn log-probabilities.

    Args:
        ranks: `qwen.tiktoken`, which the package `dashscope` contains.
    """

    def __init__(self, ranks: Path) -> None:
        import tiktoken
        from tiktoken.load import load_tiktoken_bpe

        merges = load_tiktoken_bpe(str(ranks))
        self.encoding = tiktoken.Encoding("qwen", pat_str=PATTERN, mergeable_ranks=merges, special_tokens={})
        self._draw = random.Random(0)

    def retokenised(self, trace: Trace) -> Trace:
        for segment in (*trace.earlier, trace):
            segment.prompt_ids = self._ids(segment.prompt_ids)
            ids, spans = segment.response_ids, segment.spans
            masks = [segment.loss_mask[span.start] for span in spans]
            segment.response_ids, segment.loss_mask, segment.logprobs, segment.spans = [], [], [], []
            for span, mask in zip(spans, masks, strict=True):
                own = self._ids(ids[span.start : span.end])
                drawn = [-self._draw.expovariate(3) if span.kind.is_sampled else 0.0 for _ in own]
                segment.add_span(span.kind, span.turn, own, array("f", drawn).tolist(), in_loss=bool(mask))
        return trace

    def _ids(self, ids: list[int]) -> list[int]:
        found: list[int] = []
        for is_text, run in groupby(ids, lambda token: token < 256):
            if is_text:
                found += self.encoding.encode_ordinary(bytes(run).decode(errors="replace"))
            else:
                found += [FIRST_SPECIAL + token - 256 for token in run]
        return found


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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--qwen", type=Path, metavar="RANKS", help="qwen.tiktoken: ids of Qwen instead of bytes")
    parser.add_argument("--turns", type=int, default=0, help="only trajectories with at least so many turns")
    given = parser.parse_args()
    recorded = [each for each in read_traces(given.directory, recursive=True) if len(each.turns) >= given.turns]
    if given.qwen is not None:
        recorded = list(map(Qwen(given.qwen).retokenised, recorded))
    print(json.dumps(sizes(recorded)))
    print(json.dumps([longest_step(recorded[0], length) for length in (10_000, 100_000, 1_000_000)]))
