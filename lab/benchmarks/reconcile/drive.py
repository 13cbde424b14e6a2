"""Rounds of `mcp-rollout run --resume` over one folder, until each row has its outcome; programs are killed in them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any
from urllib.request import urlopen

import psutil
import yaml

from lab.benchmarks.reconcile.engine import VARIABLE
from lab.benchmarks.reconcile.plan import CHANGE, Storm
from lab.benchmarks.server_programs import free_port, listening, sweepers_of

ROOT = Path(__file__).parents[3]
SERVER = Path(__file__).with_name("server.py")
_SERVER_ARGS = ["-I", "-S", str(SERVER)]
_POLL_S = 0.05
_LEASES = re.compile(r"^mcp_rollout_leases (\d+)$", re.MULTILINE)
_BEGUN = 20
"""Executions in a run after which all its gateways have listed their tools, and a change is one."""
_IDLE_S = 30
"""After which `serve` frees the leases of a run that was killed."""
_GONE_S = 30.0
"""For processes to end after those that they belong to."""

Command = Callable[[Sequence[str]], int]
"""Runs `mcp-rollout` with these arguments to its end, and returns its exit status."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How the run is made, beside what the plan says."""

    concurrency: int = 16
    call_timeout_s: float = 10.0
    connect_timeout_s: float = 5.0
    """To the gateway that serves."""
    wall_clock_s: float = 60.0
    rounds: int = 60
    """Most runs, beside one for each kill; a row that has no outcome then has none."""

    def patient(self, factor: float) -> Settings:
        """With all bounds on one call or trajectory so many times as long."""
        names = ("call_timeout_s", "connect_timeout_s", "wall_clock_s")
        return replace(self, **{name: factor * getattr(self, name) for name in names})


def _entry(lane: str, folder: Path, url: str, settings: Settings) -> dict[str, Any]:
    bounds = {"call_timeout_s": settings.call_timeout_s, "close_timeout_s": 2}
    match lane:
        case "sse":
            return {"url": f"{url}/sse", "type": "sse", "scope": "session", **bounds}
        case "fork" | "spawn":
            own = {"start": "fork"} if lane == "fork" else {"env": {"LEASE": "${lease.dir}"}}
            args = [*_SERVER_ARGS, "stdio", str(folder)]
            return {"command": sys.executable, "args": args, "scope": "process", **own, **bounds}
        case _:
            return {"url": f"{url}/mcp", "scope": "session", **bounds}


def write_environments(storm: Storm, folder: Path, url: str, serve: str, settings: Settings) -> list[str]:
    """An environment for each lane; returns their files."""
    files: list[str] = []
    (folder / "leases").mkdir(exist_ok=True)
    for lane in storm.lanes:
        rows = [{"id": row, "prompt": f"Begin {row}."} for row in storm.names if row.startswith(f"{lane}-")]
        (folder / f"{lane}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        environment: dict[str, Any] = {
            "servers": {"worlds": _entry(lane, folder, url, settings)},
            "user": {"server": "worlds"},
            "reward": {"server": "worlds"},
            "tasks": {"file": f"{lane}.jsonl"},
            "limits": {
                "assistant_turns": storm.turns,
                "user_turns": storm.turns,
                "wall_clock_s": settings.wall_clock_s,
                "attempts": 2,
            },
            "max_sessions": settings.concurrency,
            "lease_timeout_s": 30,
            "reset_timeout_s": settings.call_timeout_s,
            "release_timeout_s": settings.call_timeout_s,
            "lease_dir": {"parent": str(folder / "leases")},
        }
        if lane == "serve":
            (folder / "served.yaml").write_text(yaml.safe_dump(environment))
            environment["hosts"] = [
                {"url": f"{serve}/mcp", "lost_after_s": 5, "connect_timeout_s": settings.connect_timeout_s}
            ]
        (folder / f"{lane}.yaml").write_text(yaml.safe_dump(environment))
        files.append(str(folder / f"{lane}.yaml"))
    return files


def arguments(files: Sequence[str], folder: Path, settings: Settings) -> list[str]:
    """Of `mcp-rollout`, for one round."""
    return [
        *("run", *files, "--engine", "lab.benchmarks.reconcile.engine:create", "--out", str(folder / "traces")),
        *("--resume", "--split", "all", "--concurrency", str(settings.concurrency), "--progress-every", "3600"),
    ]


class Program:
    """Runs a command as a program of its own, and kills what the plan says while it runs."""

    def __init__(self, storm: Storm, folder: Path, serving: Serving | None) -> None:
        self._folder, self._serving, self._seen = folder, serving, 0
        self._rng, changing = Random(f"{storm.seed}/kills"), Random(f"{storm.seed}/changes")
        most = len(storm.names) * storm.turns
        self._moments = sorted(self._rng.randrange(most) for _ in range(storm.kills))
        """Executions in the servers' log after which something is killed."""
        self._changes = sorted(changing.randrange(most) for _ in range(storm.changes))
        """Those after which a tool changes for the next connection."""

    def __call__(self, given: Sequence[str]) -> int:
        argv = [sys.executable, "-m", "mcp_rollout", *given]
        env = os.environ | {VARIABLE: str(self._folder), "PYTHONPATH": str(ROOT)}
        with (self._folder / "run.log").open("a") as log:
            run = subprocess.Popen(argv, cwd=ROOT, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            try:
                at_last = _ran(self._folder)
                first = at_last + _BEGUN
                while run.poll() is None:
                    if self._changes and _ran(self._folder) >= max(first, self._changes[0]):
                        (self._folder / CHANGE).write_text(str(self._changes.pop(0)))
                    # Not again before something ran: what was killed last is under way again.
                    if self._moments and (ran := _ran(self._folder)) >= self._moments[0] and ran > at_last:
                        self._moments.pop(0)
                        self._kill(run)
                        at_last = _ran(self._folder)
                    time.sleep(_POLL_S)
            finally:
                run.kill()
                run.wait()
                (self._folder / CHANGE).unlink(missing_ok=True)
        if (changed := _count(self._folder, "changed")) > self._seen and self._serving is not None:
            # It uses no server again whose tools have changed.
            self._serving.start_again()
        self._seen = changed
        return run.returncode

    def _kill(self, run: subprocess.Popen[bytes]) -> None:
        """Kill the run, the gateway that serves, or a program under the run: a world, or a helper (the fork server, its
        like for one program, what cleans up)."""
        kind = self._rng.choice(("run", "serve", "child", "child", "child"))
        if kind == "serve" and self._serving is not None:
            _note(self._folder, "killed", self._serving.process.pid, kind=kind)
            return self._serving.start_again()
        children: list[psutil.Process] = []
        with suppress(psutil.Error):
            children = psutil.Process(run.pid).children(recursive=True)
            children += map(psutil.Process, sweepers_of(run.pid))
        if kind == "run" or not children:
            _note(self._folder, "killed", run.pid, kind="run")
            run.kill()
            run.wait()
            return None
        child = self._rng.choice(sorted(children, key=lambda each: each.pid))
        with suppress(psutil.Error):
            what = "world" if str(SERVER) in child.cmdline() and not child.children() else "helper"
            _note(self._folder, "killed", child.pid, kind=what)
            child.kill()


class Serving:
    """`mcp-rollout serve` at a fixed port, which is started again when it was killed."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder, self._port = folder, port
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        """Start it, again and again while the server behind it, which may have died by a fault, is not back."""
        argv = [sys.executable, "-m", "mcp_rollout", "serve", str(self._folder / "served.yaml")]
        argv += ["--port", str(self._port), "--no-token", "--idle-s", str(_IDLE_S), "--drain-s", "1"]
        until = time.monotonic() + _GONE_S
        while True:
            with (self._folder / "serve.log").open("a") as log:
                process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL)
            assert process.stdout is not None
            if process.stdout.readline():
                return process
            process.communicate()
            if time.monotonic() > until:
                raise RuntimeError(f"serve did not start: {(self._folder / 'serve.log').read_text()[-2000:]}")

    def start_again(self) -> None:
        """Kill it, and start it at the same port."""
        self._kill()
        self.process = self._start()

    def end(self) -> None:
        """End it as its users do, once those of its leases that a killed run left are idle for too long."""
        until = time.monotonic() + _IDLE_S + _GONE_S
        while (leases := self._leases()) and time.monotonic() < until:
            time.sleep(_POLL_S)
        if leases:
            _note(self._folder, "leased", self.process.pid, leases=leases)
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_GONE_S)
            assert self.process.stdout is not None
            return self.process.stdout.close()
        _note(self._folder, "stuck", self.process.pid)
        self._kill()

    def _leases(self) -> int:
        """Leases that it has given and not got back."""
        with urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=_GONE_S) as answer:
            return sum(map(int, _LEASES.findall(answer.read().decode())))

    def _kill(self) -> None:
        with self.process:
            self.process.kill()


def _note(folder: Path, what: str, pid: int, **more: Any) -> None:
    with (folder / "driver.jsonl").open("a") as log:
        log.write(json.dumps({"at": time.monotonic(), "what": what, "pid": pid, **more}) + "\n")


def _ran(folder: Path) -> int:
    return _count(folder, "ran")


def _count(folder: Path, what: str) -> int:
    return (folder / "log.jsonl").read_bytes().count(f'"what": "{what}"'.encode())


@contextmanager
def opened(storm: Storm, folder: Path, settings: Settings) -> Generator[tuple[list[str], Serving | None]]:
    """The servers that outlive a run; yields the environments' files."""
    storm.write(folder)
    (folder / "log.jsonl").touch()
    with listening([sys.executable, *_SERVER_ARGS, "http", str(folder)]) as (_, port):
        url = f"http://127.0.0.1:{port}"
        if "serve" not in storm.lanes:
            yield write_environments(storm, folder, url, "", settings), None
            return
        serve_port = free_port()
        files = write_environments(storm, folder, url, f"http://127.0.0.1:{serve_port}", settings)
        serving = Serving(folder, serve_port)
        try:
            yield files, serving
        finally:
            serving.end()


def play(storm: Storm, folder: Path, settings: Settings, command: Command | None = None) -> int:
    """Play rounds until a run exits with 0, and return their number.

    Args:
        command: Runs one round; None for a program of its own, which alone can be killed.
    """
    with opened(storm, folder, settings) as (files, serving):
        run = command or Program(storm, folder, serving)
        played, status = 0, None
        while status != 0 and played < settings.rounds + storm.kills:
            played += 1
            _note(folder, "began", os.getpid())
            status = run(arguments(files, folder, settings))
            _note(folder, "ended", os.getpid(), status=status)
    _note(folder, "left", os.getpid(), programs=left_programs(folder))
    return played


def left_programs(folder: Path) -> list[str]:
    """Programs that name the folder, once they have had time to end."""
    until = time.monotonic() + _GONE_S
    # The last of them removes the directories of leases.
    while ((found := list(_programs(folder))) or any((folder / "leases").iterdir())) and time.monotonic() < until:
        time.sleep(_POLL_S)
    return found


def _programs(folder: Path) -> Iterator[str]:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and str(folder) in " ".join(process.cmdline()):
                yield f"{process.pid}: {' '.join(process.cmdline())[:200]}"
