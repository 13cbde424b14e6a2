"""SIGTERM ends the demo together with the processes that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

import pytest

from lab.demo.processes import child, end_on_sigterm

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60.0

pytestmark = [pytest.mark.verl]

TRAINING = """
import sys
from pathlib import Path
from lab.demo.grpo import train
from lab.demo.processes import end_on_sigterm
end_on_sigterm()
train(Path(sys.argv[2]), seed=0, steps=1, learning_rate=0.0)
"""


@pytest.mark.parametrize(
    ("command", "started"),
    [
        (["-m", "lab.demo", "--control", "--out"], "mcp-rollout"),
        # verl ends by itself for want of rows, but only after it has been imported.
        (["-c", TRAINING, "--out"], "verl.trainer.main_ppo"),
    ],
)
def test_sigterm_ends_the_demo_and_the_command_that_it_runs(command: list[str], started: str, tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [sys.executable, *command, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        began = time.monotonic()
        while not (found := [pid for pid in children(demo.pid) if started in command_line(pid)]):
            assert demo.poll() is None and time.monotonic() - began < DEADLINE_S, demo.communicate(timeout=10)[0]
            time.sleep(0.02)
        demo.send_signal(signal.SIGTERM)
        assert demo.wait(timeout=DEADLINE_S) == 128 + signal.SIGTERM
        assert not [pid for pid in found if command_line(pid)]
    finally:
        demo.kill()
        demo.communicate()


def test_sigterm_while_a_process_starts_ends_that_process() -> None:
    before, handler = set(children(os.getpid())), signal.getsignal(signal.SIGTERM)
    end_on_sigterm()
    sys.setprofile(sigterm_after_fork)
    try:
        with pytest.raises(SystemExit, match=str(128 + signal.SIGTERM)), child(["sleep", "600"]):
            pytest.fail("SIGTERM was lost")
        assert not set(children(os.getpid())) - before
    finally:
        sys.setprofile(None)
        signal.signal(signal.SIGTERM, handler)


def sigterm_after_fork(_frame: FrameType, event: str, called: object) -> None:
    """Send this process SIGTERM once `subprocess` has started another one, and has not returned yet."""
    if event == "c_return" and getattr(called, "__name__", "") == "fork_exec":
        sys.setprofile(None)
        signal.raise_signal(signal.SIGTERM)


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def command_line(pid: int) -> str:
    """The command of a process, empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""
