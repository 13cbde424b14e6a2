"""SIGINT and SIGTERM at any moment of a training: all of it ends, and it goes on from its last checkpoint.

A moment is a phase, known by what the run has written, and a share of the seconds that the phase takes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest
from echo_training import JUDGED, ROWS, SHOUT_PLUM, prepare_training
from verl_run import ROOT, command, logged, train

from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.store import read_traces

pytestmark = [pytest.mark.verl, pytest.mark.full, pytest.mark.timeout(3600)]

SEED = 34
STEPS, SAMPLES = 3, 2
ENDS_S = 30.0
"""On a machine that is not busier than it has processors."""
REACHED_S = 600.0
"""Bound on the wait for a phase."""


@dataclass(frozen=True)
class Run:
    """One start of the training, and where it began."""

    home: Path
    last: int
    """Step of the last checkpoint before."""
    played: int
    """Trajectories that were recorded before."""

    def has_said(self, text: str) -> bool:
        return text in (self.home / "log").read_text(errors="replace")

    def has_leased(self) -> bool:
        return any((self.home / "leases").iterdir())

    def is_held(self) -> bool:
        """Whether a call is under way that is not answered."""
        return (self.home / "held").exists()

    def is_held_in_validation(self) -> bool:
        # Between the checkpoint and the calls of the validation lies the synchronisation of the weights.
        if saved(self.home) > self.last:
            (self.home / "hold").touch()
        return self.is_held()

    def has_rolled_out(self) -> bool:
        return len(traces_of(self.home)) - self.played >= ROWS * SAMPLES

    def is_saving(self) -> bool:
        return (self.home / f"global_step_{self.last + 1}").exists()

    def has_taken_a_step(self) -> bool:
        path = self.home / "mcp_rollout" / "mcp_grpo.jsonl"
        return path.exists() and f'"step":{self.last + 1},' in path.read_text()


PHASES: dict[str, tuple[Callable[[Run], bool], float]] = {
    "imports": (lambda run: True, 8.0),
    "preflight": (Run.has_leased, 2.0),
    "start of Ray": (lambda run: run.has_said("ray init kwargs"), 4.0),
    "start of workers": (lambda run: run.has_said("Started a local Ray instance"), 8.0),
    "load of the model": (lambda run: run.has_said("Total training steps"), 6.0),
    "call": (Run.is_held, 1.0),
    "update": (Run.has_rolled_out, 1.0),
    "checkpoint": (Run.is_saving, 0.12),
    "validation": (Run.is_held_in_validation, 1.0),
    "next step": (Run.has_taken_a_step, 2.0),
}
"""What is known of a run when the phase has begun, and seconds."""


@dataclass(frozen=True)
class Moment:
    phase: str
    number: signal.Signals
    is_of_group: bool
    """Whether all processes of the group get the signal, as from a terminal."""
    share: float

    def __str__(self) -> str:
        return f"{self.number.name}{' of the group' * self.is_of_group} in {self.phase}, at {self.share:.2f} of it"


def drawn() -> list[Moment]:
    """Each phase once, five of each signal."""
    rng = Random(SEED)
    numbers = [signal.SIGINT, signal.SIGTERM] * (len(PHASES) // 2)
    rng.shuffle(numbers)
    return [
        Moment(phase, number, rng.random() < 0.5, rng.random()) for phase, number in zip(PHASES, numbers, strict=True)
    ]


MOMENTS = drawn()
PAIRS = list(zip(MOMENTS[: len(PHASES) // 2], MOMENTS[len(PHASES) // 2 :], strict=True))
"""Of each, the second interrupts what goes on after the first."""


def traces_of(home: Path) -> list[Trace]:
    return list(read_traces(home / "traces")) if (home / "traces").exists() else []


def saved(home: Path) -> int:
    path = home / "latest_checkpointed_iteration.txt"
    return int(path.read_text() or 0) if path.exists() else 0


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A directory, and verl's overrides for a training in it, whose servers are forks with directories of their own."""
    home = tmp_path_factory.mktemp("training")
    env = {"ECHO_HELD_IN": str(home), "OF": str(home), "LEASE": "${lease.dir}"}
    echo = {**JUDGED["servers"]["echo"], "env": env, "scope": "process", "start": "fork"}
    environment = {**JUDGED, "servers": {"echo": echo}, "lease_dir": {"parent": str(home / "leases")}}
    (home / "leases").mkdir()
    return home, prepare_training(home, environment, SHOUT_PLUM, samples=SAMPLES) | {
        "trainer.total_training_steps": STEPS,
        "trainer.save_freq": 1,
        "trainer.test_freq": 1,
        "trainer.resume_mode": "auto",
    }


@pytest.fixture
def training(prepared: tuple[Path, dict[str, Any]]) -> tuple[Path, dict[str, Any]]:
    """The same, as if it had never been started."""
    home, _ = prepared
    for path in (*home.glob("global_step_*"), home / "traces", home / "mcp_rollout"):
        shutil.rmtree(path, ignore_errors=True)
    (home / "latest_checkpointed_iteration.txt").unlink(missing_ok=True)
    return prepared


def interrupted(home: Path, overrides: dict[str, Any], moment: Moment) -> int:
    """Start the training, send it the signal at this moment, and return its status."""
    for name in ("hold", "held"):
        (home / name).unlink(missing_ok=True)
    if moment.phase == "call":
        (home / "hold").touch()
    has_begun, seconds = PHASES[moment.phase]
    # Where the tests run in a shell's background, SIGINT is ignored by all that they start.
    argv, env = command(home, overrides, OF=str(home), PYTHONUNBUFFERED="1")
    argv = ["env", "--default-signal=INT", *argv]
    run = Run(home, saved(home), len(traces_of(home)))
    with (
        (home / "log").open("wb") as log,
        subprocess.Popen(argv, cwd=ROOT, env=env, stdout=log, stderr=log, start_new_session=True) as process,
    ):
        try:
            until = time.monotonic() + REACHED_S
            while not has_begun(run):
                assert process.poll() is None and time.monotonic() < until, f"{moment} never came: {said(home)}"
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.05)
            with suppress(subprocess.TimeoutExpired):
                process.wait(moment.share * seconds)
            assert process.poll() is None, f"it ended before {moment}: {said(home)}"
            (os.killpg if moment.is_of_group else os.kill)(process.pid, moment.number)
            busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
            process.wait(ENDS_S * busy)
            assert not psutil.wait_procs(left_of(home), ENDS_S)[1], f"{moment}: {left_of(home)}"
        finally:
            process.kill()
            for each in left_of(home):
                with suppress(psutil.Error):
                    each.kill()
    return process.returncode


def left_of(home: Path) -> list[psutil.Process]:
    """All processes of the training: by their environment, or as a sweeper, which has none, by its directory."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("OF") == str(home) or f"{home}/leases" in " ".join(process.cmdline()):
                found.append(process)
    return found


def said(home: Path) -> str:
    return (home / "log").read_text(errors="replace")[-4000:]


@pytest.mark.parametrize(
    "moments", [pytest.param(pair, id="-".join(each.phase for each in pair).replace(" ", "_")) for pair in PAIRS]
)
def test_an_interrupted_training_ends_and_goes_on(
    moments: tuple[Moment, Moment], training: tuple[Path, dict[str, Any]]
) -> None:
    home, overrides = training
    for moment in moments:
        status = interrupted(home, overrides, moment)
        assert status != 0, moment
        assert not list((home / "leases").iterdir()), moment
        assert all(trace.stop_reason for trace in traces_of(home)), moment
    (home / "hold").unlink(missing_ok=True)
    last = saved(home)
    done = train(home, overrides)
    assert done.returncode == 0, f"{moments}\n{done.stdout[-8000:]}"
    assert sorted(logged(home)) == list(range(last + 1, STEPS + 1)) and saved(home) == STEPS, last
    played = {
        (trace.origin.step, trace.origin.row, trace.origin.sample)
        for trace in traces_of(home)
        if not trace.origin.validate_
    }
    assert len(played) == STEPS * ROWS * SAMPLES
