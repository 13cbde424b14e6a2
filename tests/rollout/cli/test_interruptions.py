"""SIGINT and SIGTERM at any moment: the command ends in order, its servers with it, and a run goes on later.

A moment is a share of the processor time that the command takes, so that it is the same on a busy machine.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import psutil
import pytest
from commands import ROOT, mcp_rollout

from mcp_rollout.rollout.evaluation.resume import is_done
from mcp_rollout.rollout.trace.store import read_traces

COMMAND = str(Path(sys.executable).with_name("mcp-rollout"))
SEED = 34
ENDS_S = 5.0
"""On a machine that is not busier than it has processors."""
CPU_S = {"run": 3.5, "serve": 3.0, "doctor": 3.0, "check-env": 3.0, "trace view": 2.0}
"""What each takes, or takes until it waits."""
FIRST_CPU_S = 0.3
"""Before that, Python itself starts."""
MOMENTS = [
    (command, number, *drawn)
    for command in CPU_S
    for number, rng in ((number, Random(f"{SEED}/{command}/{number}")) for number in range(20))
    for drawn in [(rng.choice((signal.SIGINT, signal.SIGTERM)), rng.uniform(FIRST_CPU_S, CPU_S[command]))]
]


def arguments(command: str, home: Path) -> list[str]:
    entry = {"command": sys.executable, "args": ["-m", "mcp_rollout.mcp_servers.calculator"], "env": {"OF": str(home)}}
    servers = home / "servers.json"
    servers.write_text(json.dumps({"mcpServers": {"calculator": entry}}))
    environment = home / "sums.yaml"
    source = {"server": "calculator"}
    scored = source | {"parts": ["answer", "form"]}
    environment.write_text(json.dumps({"servers": {"calculator": entry}, "tasks": source, "reward": scored}))
    match command:
        case "run":
            given = ["run", environment, "--engine", "expert", "-n", "4", "--samples", "30", "--out", home / "traces"]
            return [*map(str, given), "--resume"]
        case "serve":
            return ["serve", str(environment), "--no-token"]
        case "doctor":
            return ["doctor", str(servers)]
        case "check-env":
            return ["check-env", str(environment)]
        case _:
            return ["trace", "view", str(home / "traces")]


def servers_of(home: Path) -> list[psutil.Process]:
    """The processes of the command's servers."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("OF") == str(home):
                found.append(process)
    return found


def interrupted(command: str, home: Path, number: signal.Signals, cpu_s: float) -> tuple[int, str]:
    """Start the command, send it the signal at this moment, and return its status and what it wrote."""
    # Where the tests run in a shell's background, SIGINT is ignored by all that they start.
    argv = ["env", "--default-signal=INT", COMMAND, *arguments(command, home)]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            used = watched.cpu_times()
            if used.user + used.system >= cpu_s or is_waiting(command, watched):
                break
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
        process.send_signal(number)
        busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        try:
            said, _ = process.communicate(timeout=ENDS_S * busy)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return process.returncode, said


def is_waiting(command: str, process: psutil.Process) -> bool:
    """Whether a command that only an interruption ends takes connections, however little time that took."""
    if command not in ("serve", "trace view"):
        return False
    with suppress(psutil.Error):
        return any(each.status == psutil.CONN_LISTEN for each in process.net_connections())
    return False


def check(command: str, home: Path, number: signal.Signals, cpu_s: float) -> None:
    if command == "trace view":
        mcp_rollout(*arguments("run", home))
    status, said = interrupted(command, home, number, cpu_s)
    where = f"{command}, {number.name} after {cpu_s:.2f} s of its processor time: status {status}\n{said}"
    assert status in (0, 1, 130) and "Traceback" not in said, where
    assert not psutil.wait_procs(servers_of(home), ENDS_S)[1], where
    if command == "run":
        kept = [trace for trace in read_traces(home / "traces") if is_done(trace)] if (home / "traces").exists() else []
        done = mcp_rollout(*arguments(command, home))
        assert done.status == 0, f"{where}\n{done.err[-2000:]}"
        traces = [trace for trace in read_traces(home / "traces") if is_done(trace)]
        rows = {(trace.origin.row, trace.origin.sample) for trace in traces}
        assert len(rows) == len(traces) == 120 and {trace.id for trace in kept} <= {trace.id for trace in traces}, where


def few(command: str, number: int) -> bool:
    return (command, number) in (("run", 1), ("serve", 2), ("check-env", 0))


def named(moment: Sequence[object]) -> str:
    return f"{moment[0]}-{moment[1]}".replace(" ", "-")


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(moment, id=named(moment), marks=() if few(moment[0], moment[1]) else pytest.mark.full)
        for moment in MOMENTS
    ],
)
def test_an_interrupted_command_ends_in_order(moment: tuple[str, int, signal.Signals, float], tmp_path: Path) -> None:
    command, _, number, cpu_s = moment
    check(command, tmp_path, number, cpu_s)


LATE = """
import os, signal, sys
from mcp_rollout.rollout.cli.app import main

class Late:
    def __del__(self, kill=os.kill, process=os.getpid(), number=signal.{name}):
        kill(process, number)

late = Late()  # which the interpreter deletes after it has set the default handlers
sys.argv = ["mcp-rollout", "--version"]
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_command_that_is_over_keeps_its_status(number: signal.Signals) -> None:
    argv = ["env", "--default-signal=INT", sys.executable, "-c", LATE.format(name=number.name)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout, done


AT_IMPORT = """
import os, signal, sys
from pydantic_core import SchemaSerializer
from mcp_rollout.rollout.cli.app import main

class Said:
    def __repr__(self):
        os.kill(os.getpid(), signal.{name})
        return "said"

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "mcp_rollout.rollout.cli.tools":
            SchemaSerializer(dict(type="literal", expected=[Said()]))

sys.meta_path.insert(0, Finder())
sys.argv = ["mcp-rollout", "tools", "calculator"]
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_compiled_code_that_an_import_runs_does_not_swallow_the_signal(number: signal.Signals) -> None:
    argv = ["env", "--default-signal=INT", sys.executable, "-c", AT_IMPORT.format(name=number.name)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 130 and "Traceback" not in done.stderr, done


BEFORE = """
import os, signal, sys
from importlib.abc import MetaPathFinder

class Signalling(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["MODULE"]:
            os.kill(os.getpid(), int(os.environ["SIGNAL"]))

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job inherits it ignored
sys.meta_path.insert(0, Signalling())
from mcp_rollout.__main__ import main
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
@pytest.mark.parametrize("module", ["typer", "mcp_rollout.rollout.cli.output", "structlog"])
def test_a_signal_during_imports_ends_the_command_with_its_usual_status(number: signal.Signals, module: str) -> None:
    env = {**os.environ, "MODULE": module, "SIGNAL": str(int(number))}
    argv = [sys.executable, "-c", BEFORE, "tools", "none.json"]
    ended = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, b"", b"")
