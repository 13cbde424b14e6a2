"""What a trainer computed on each token: written by step, read with a value for each token of the response."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from mcp_rollout.rollout.trace.trained import read_trained, write_trained
from mcp_rollout.rollout.trace.trained_segment import TrainedSegment, digest

PROMPT, RESPONSE = [1, 2], [7, 8, 9, 10]
TRAINED = TrainedSegment(
    trace="a",
    segment=1,
    step=3,
    uid="u",
    sample=2,
    output=0,
    ids_digest=digest(PROMPT, RESPONSE),
    mask=[True, False, True, True],
    sampled_logprobs=[-0.5, 0.0, -1.5, -0.25],
    trainer_logprobs=[-0.25, -9.0, -1.5, -0.5],
    advantages=[0.5, 0.0, 0.5, -0.5],
    entropy=[1.0, 9.0, 2.0, 0.5],
    versions=[4, 4, 4, 6],
)
DROPPED = TrainedSegment(trace="b", segment=0, step=3, uid="v", sample=0, output=0, dropped="filtered")


def test_numbers_are_aligned_with_the_response_and_0_where_nothing_was_trained(tmp_path: Path) -> None:
    write_trained(tmp_path, 3, [TRAINED, DROPPED])
    read, dropped = read_trained(tmp_path)
    assert (dropped.trace, dropped.dropped, dropped.mask, dropped.advantages) == ("b", "filtered", [], ())
    assert (read.trace, read.segment, read.step, read.uid, read.sample, read.output) == ("a", 1, 3, "u", 2, 0)
    assert read.mask == TRAINED.mask and read.dropped is None
    assert read.sampled_logprobs == TRAINED.sampled_logprobs
    assert read.trainer_logprobs == [-0.25, 0.0, -1.5, -0.5] and read.entropy == [1.0, 0.0, 2.0, 0.5]
    assert read.versions == [4, 0, 4, 6]
    assert read.ratios == [math.exp(0.25), 0.0, 1.0, math.exp(-0.25)]


def test_a_trainer_without_entropy_or_an_engine_without_logprobs_leaves_them_out(tmp_path: Path) -> None:
    write_trained(tmp_path, 1, [replace(TRAINED, entropy=None, sampled_logprobs=None)])
    (read,) = read_trained(tmp_path)
    assert read.entropy is None and read.sampled_logprobs is None and read.ratios is None
    assert read.trainer_logprobs == [-0.25, 0.0, -1.5, -0.5]


def test_steps_are_read_in_order_and_a_step_that_was_trained_again_has_both(tmp_path: Path) -> None:
    for step in (10, 2, 2):
        write_trained(tmp_path, step, [replace(TRAINED, step=step)])
    assert [each.step for each in read_trained(tmp_path)] == [2, 2, 10]


def test_a_digest_tells_other_ids_and_another_split_apart() -> None:
    assert digest(array("q", PROMPT), array("q", RESPONSE)) == digest(PROMPT, RESPONSE)
    others = [([1], [2, *RESPONSE]), (PROMPT, RESPONSE[:-1]), (PROMPT, [*RESPONSE[:-1], 11])]
    assert digest(PROMPT, RESPONSE) not in [digest(*other) for other in others]


@pytest.mark.parametrize("written", [1, 5])
def test_a_writer_that_is_killed_loses_the_step_it_was_writing_at_most(tmp_path: Path, written: int) -> None:
    program = """
import sys
sys.path.insert(0, sys.argv[3])
from test_trained import TRAINED
from mcp_rollout.rollout.trace.trained import write_trained
for step in range(1, 1_000_000):
    write_trained(sys.argv[1], step, [TRAINED] * 200)
    if step == int(sys.argv[2]):
        print("written", flush=True)
"""
    command = [sys.executable, "-c", program, str(tmp_path), str(written), str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None and writer.stdout.readline() == b"written\n"
        os.kill(writer.pid, signal.SIGKILL)
    with capture_logs() as logs:
        read = list(read_trained(tmp_path))
    assert len(read) >= 200 * written and len(read) % 200 == 0 and logs == []
