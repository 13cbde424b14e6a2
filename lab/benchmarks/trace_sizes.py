"""What traces cost: bytes per token, processor time of writing and looking, and how long a write holds the event loop.

    python -m lab.benchmarks.trace_sizes DIR [--turns 14] [--qwen qwen.tiktoken] [--thoughts] [--looking 10000]

DIR has traces; they are archived into a temporary directory and measured. With `--qwen` the ids of an engine over bytes
are replaced by those of Qwen's tokenizer (`pip download --no-deps dashscope` has the file; needs `tiktoken`), and with
`--thoughts` each completion begins with sentences of docs/, partly with their words in another order. `--looking`
archives so many, the same ones under other ids, and looks things up. Prints one JSON object a line.
"""

# tiktoken is installed for this alone.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import argparse
import json
import random
import re
import resource
import tempfile
import time
from array import array
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from mcp_rollout.rollout.trace.archive import archive
from mcp_rollout.rollout.trace.columns import write_columns
from mcp_rollout.rollout.trace.journal import pieces, to_json
from mcp_rollout.rollout.trace.reader import Traces
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.segment import SpanKind
from mcp_rollout.rollout.trace.store import TraceStore, read_traces

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen's tokenizers split text."""
FIRST_SPECIAL = 151_643


class Qwen:
    """Traces over bytes as a model with Qwen's tokenizer would have them, with drawn log-probabilities.

    Args:
        ranks: `qwen.tiktoken`, which the package `dashscope` contains.
        thoughts: sentences; each sampled span gets some of them before it.
    """

    def __init__(self, ranks: Path, thoughts: Sequence[str] = ()) -> None:
        import tiktoken
        from tiktoken.load import load_tiktoken_bpe

        merges = load_tiktoken_bpe(str(ranks))
        self.encoding = tiktoken.Encoding("qwen", pat_str=PATTERN, mergeable_ranks=merges, special_tokens={})
        self._draw, self._thoughts = random.Random(0), thoughts

    def retokenised(self, trace: Trace) -> Trace:
        for segment in (*trace.earlier, trace):
            segment.prompt_ids = self._ids(segment.prompt_ids)
            ids, spans = segment.response_ids, segment.spans
            masks = [segment.loss_mask[span.start] for span in spans]
            segment.response_ids, segment.loss_mask, segment.logprobs, segment.spans = [], [], [], []
            for span, mask in zip(spans, masks, strict=True):
                own = self._ids(ids[span.start : span.end])
                if self._thoughts and span.kind.is_sampled:
                    thought = trace.turns[span.turn].thinking = " ".join(self._sentences())
                    said = self.encoding.encode_ordinary(thought)
                    segment.add_span(SpanKind.THINKING, span.turn, said, self._logprobs(len(said)), in_loss=True)
                drawn = self._logprobs(len(own)) if span.kind.is_sampled else None
                segment.add_span(span.kind, span.turn, own, drawn, in_loss=bool(mask))
        return trace

    def _sentences(self) -> Iterator[str]:
        for sentence in self._draw.choices(self._thoughts, k=self._draw.randint(2, 25)):
            words = sentence.split()
            yield " ".join(self._draw.sample(words, len(words))) if self._draw.random() < 0.5 else sentence

    def _logprobs(self, count: int) -> list[float]:
        """Two of five are next to certain."""
        draw = self._draw
        return array("f", [-draw.expovariate(3 if draw.random() < 0.6 else 1e4) for _ in range(count)]).tolist()

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
            "export_bytes_per_token": _exported_bytes(traces) / tokens,
            "write_ms": written / len(traces) * 1e3,
            "archive_ms": (time.process_time() - began) / len(traces) * 1e3,
            "archive_peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }


def _exported_bytes(traces: list[Trace]) -> int:
    with tempfile.TemporaryDirectory() as directory:
        write_columns(path := Path(directory) / "all.parquet", traces)
        return path.stat().st_size


def looking(traces: list[Trace], count: int) -> dict[str, Any]:
    """Processor time of making the index of `count` archived records, of opening one, and of reading all."""
    with tempfile.TemporaryDirectory() as directory:
        store = TraceStore(directory)
        for number in range(count):
            traces[number % len(traces)].id = f"{number:032x}"
            store.append(traces[number % len(traces)])
        store.close()
        store.wait_for_archives()
        for journal in Path(directory).glob("*.jsonl"):
            archive(journal)
        began = time.process_time()
        with Traces(directory) as opened:
            found, spent = {"records": count, "index_s": time.process_time() - began}, list[float]()
            for entry in random.Random(0).sample(list(opened.entries()), 30):
                began = time.process_time()
                opened.read(entry)
                spent.append(time.process_time() - began)
            began = time.process_time()
            assert sum(1 for _ in opened.traces()) == count
            return found | {"open_ms": sorted(spent)[15] * 1e3, "read_all_s": time.process_time() - began}


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
    parser.add_argument("--thoughts", action="store_true", help="with --qwen: thoughts before each completion")
    parser.add_argument("--looking", type=int, default=0, metavar="N", help="look into so many archived records")
    given = parser.parse_args()
    recorded = [each for each in read_traces(given.directory, recursive=True) if len(each.turns) >= given.turns]
    if given.qwen is not None:
        pages = " ".join(path.read_text() for path in sorted(Path("docs").glob("*.md"))) if given.thoughts else ""
        sentences = [part for part in re.split(r"(?<=[.:;,])\s+", pages) if 20 < len(part) < 300]
        recorded = list(map(Qwen(given.qwen, sentences).retokenised, recorded))
    print(json.dumps(sizes(recorded)))
    if given.looking:
        print(json.dumps(looking(recorded, given.looking)))
    print(json.dumps([longest_step(recorded[0], length) for length in (10_000, 100_000, 1_000_000)]))
