"""What writing traces takes of a rollout: its share of the wall time, and how long it holds the event loop at once.

    python -m lab.benchmarks.trace_writing [--rows 120] [--samples 9] [--concurrency 512] [--qwen RANKS] [--profile]

The expert, an engine that answers at once, plays retail over stdio. Its ids are bytes, or with `--qwen` those of Qwen's
tokenizer, of which a trajectory has a third as many. Every step of `TraceStore.write` is timed, in wall
time and in processor time of the thread that runs the event loop; so is every callback of that loop. The rollout's wall
time is that of `play_all`, without the start of servers. Prints one JSON object, and with `--profile` where the time of
writing goes.
"""

# Methods of ByteTokens are replaced.
# pyright: basic, reportAttributeAccessIssue=false

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import sys
import tempfile
import time
from collections.abc import Awaitable, Generator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

from lab.benchmarks.callbacks import timed
from lab.benchmarks.trace_sizes import Qwen
from mcp_rollout.rollout.cli import run as command
from mcp_rollout.rollout.cli.app import main
from mcp_rollout.rollout.tokens.chatml import _IDS, _SPLIT, IM_END, IM_START, SPECIAL, ByteTokens
from mcp_rollout.rollout.trace.store import TraceStore

RETAIL = Path(__file__).parents[2] / "configs" / "environments" / "retail.yaml"


class Steps:
    """The time that is spent in coroutines of one kind, step by step."""

    def __init__(self) -> None:
        self.count = 0
        self.wall_s = self.processor_s = self.longest_s = 0.0
        self.profile: cProfile.Profile | None = None

    def around(self, coroutine: Any) -> Awaitable[Any]:
        self.count += 1
        return _Timed(coroutine, self)


class _Timed:
    def __init__(self, coroutine: Any, steps: Steps) -> None:
        self._coroutine, self._steps = coroutine, steps

    def __await__(self) -> Generator[Any, Any, Any]:
        steps, value = self._steps, None
        while True:
            began, processor = time.perf_counter(), time.thread_time()
            try:
                if steps.profile is None:
                    waited_for = self._coroutine.send(value)
                else:
                    waited_for = steps.profile.runcall(self._coroutine.send, value)
            except StopIteration as done:
                return done.value
            finally:
                spent = time.thread_time() - processor
                steps.wall_s += time.perf_counter() - began
                steps.processor_s += spent
                steps.longest_s = max(steps.longest_s, spent)
            value = yield waited_for


def use_qwen(ranks: Path) -> None:
    """Have `ByteTokens` make ids of Qwen's tokenizer, behind its own for the markers."""
    encoding, first = Qwen(ranks).encoding, max(_IDS.values()) + 1

    def ids(text: str) -> list[int]:
        return [first + token for token in encoding.encode_ordinary(text)]

    def encode(_: ByteTokens, text: str) -> list[int]:
        return [token for piece in _SPLIT.split(text) for token in ([_IDS[piece]] if piece in _IDS else ids(piece))]

    def decode(_: ByteTokens, tokens: Sequence[int]) -> str:
        runs = groupby(tokens, lambda token: token < first)
        return "".join(
            "".join(SPECIAL[token - 256] for token in run)
            if is_marker
            else encoding.decode([token - first for token in run])
            for is_marker, run in runs
        )

    def message(_: ByteTokens, role: str, text: str) -> list[int]:
        return [_IDS[IM_START], *ids(f"{role}\n{text}"), _IDS[IM_END], *ids("\n")]

    ByteTokens.encode, ByteTokens.decode, ByteTokens._message = encode, decode, message
    ByteTokens._generation_prompt = lambda _: [_IDS[IM_START], *ids("assistant\n")]


def measured(options: argparse.Namespace) -> tuple[dict[str, Any], Steps]:
    """Play, and measure what writing took."""
    writing, playing = Steps(), Steps()
    writing.profile = cProfile.Profile() if options.profile else None
    write, play = TraceStore.write, command.play_all
    TraceStore.write = lambda self, trace: writing.around(write(self, trace))  # pyright: ignore
    wall = 0.0

    async def timed_play(*arguments: Any, **named: Any) -> None:
        nonlocal wall
        began = time.perf_counter()
        await playing.around(play(*arguments, **named))
        wall = time.perf_counter() - began

    command.play_all = timed_play
    with tempfile.TemporaryDirectory() as home, timed(0.02) as callbacks:
        environment = Path(home) / "retail.yaml"
        raw = yaml.safe_load(RETAIL.read_text())
        environment.write_text(yaml.safe_dump(raw | {"max_sessions": options.concurrency}))
        given = {"-n": options.rows, "--samples": options.samples, "--concurrency": options.concurrency}
        arguments = [str(each) for pair in given.items() for each in pair]
        sys.argv = ["mcp-rollout", "run", str(environment), "--engine", "expert", "--split", "train", "--json"]
        sys.argv += ["--out", f"{home}/out", *arguments]
        processor = time.process_time()
        try:
            main()
        except SystemExit as ended:
            assert not ended.code, ended.code
        processor = time.process_time() - processor
        written = sum(path.stat().st_size for path in Path(home, "out").rglob("*") if path.is_file())
    return {
        "records": writing.count,
        "megabytes": written / 2**20,
        "write_ms": writing.processor_s / writing.count * 1e3,
        "rollout_s": wall,
        "share_of_wall": writing.wall_s / wall,
        "processor_share_of_wall": writing.processor_s / wall,
        "share_of_this_process": writing.processor_s / processor,
        "longest_write_ms": writing.longest_s * 1e3,
        "longest_callback_ms": callbacks.longest_s * 1e3,
        "callbacks_above_20_ms": dict(callbacks.slow),
    }, writing


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=120)
    parser.add_argument("--samples", type=int, default=9)
    parser.add_argument("--concurrency", type=int, default=512)
    parser.add_argument("--qwen", type=Path, metavar="RANKS", help="qwen.tiktoken: ids of Qwen instead of bytes")
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    if given.qwen is not None:
        use_qwen(given.qwen)
    found, steps = measured(given)
    print(json.dumps(found))
    if steps.profile is not None:
        pstats.Stats(steps.profile).sort_stats("tottime").print_stats(12)
