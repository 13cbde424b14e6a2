"""The copy of a commit in which `lab.benchmarks.mutations` changes and tests, and what is learnt of its tests."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections import defaultdict
from dataclasses import dataclass, field
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any


@dataclass
class Copy:
    place: Path
    """Where the commit's files are, in `tree`, and an environment like this one's whose product they are, in `venv`."""
    sources: dict[str, str]
    known: Path
    """What is learnt, for the next run."""
    took: dict[str, float] = field(default_factory=dict[str, float])
    """Seconds of each test that passed."""
    broken: set[str] = field(default_factory=set[str])
    """Tests and files that fail without a change."""
    hits: dict[str, set[str]] = field(default_factory=lambda: defaultdict[str, set[str]](set))
    probed: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        self.tree, venv = self.place / "tree", self.place / "venv"
        self.bin = venv / "bin"
        installed = shutil.ignore_patterns("__editable__*")
        shutil.copytree(sys.prefix, venv, symlinks=True, copy_function=_link, ignore=installed)
        packages = venv / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
        (packages / "copy.pth").write_text(f"{self.tree}\n")
        shutil.copy(Path(__file__).with_name("mutation_probe.py"), packages)
        self.notes = packages / "mutation_probe_notes"
        self.notes.mkdir()
        for script in self.bin.iterdir():
            if not script.is_symlink() and (text := script.read_bytes()).startswith(b"#!"):
                script.unlink()
                script.write_bytes(text.replace(sys.prefix.encode(), str(venv).encode()))
                script.chmod(0o755)
        for line in self.known.read_text().splitlines() if self.known.exists() else ():
            self._learn(json.loads(line))

    def learn(self, **record: Any) -> None:
        with self.known.open("a") as file:
            file.write(json.dumps(record) + "\n")
        self._learn(record)

    def _learn(self, record: dict[str, Any]) -> None:
        self.took |= record.get("passed", {})
        self.broken |= set(record.get("failed", ()))
        self.probed |= set(record.get("files", ()))
        for test, keys in record.get("hits", {}).items():
            for key in keys:
                self.hits[key].add(test)

    def write(self, path: str, text: str | None = None) -> None:
        """Another text of a module, or the commit's."""
        (self.tree / path).write_text(self.sources[path] if text is None else text)
        Path(cache_from_source(str(self.tree / path))).unlink(missing_ok=True)

    def run(self, command: list[str], limit_s: float) -> int | None:
        """The exit status; None if it takes longer. Ends whatever the command leaves behind."""
        env = {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
        for name in ("PYTHONPATH", "VIRTUAL_ENV"):
            env.pop(name, None)
        with (self.place / "log").open("wb") as log:
            process = subprocess.Popen(command, cwd=self.tree, env=env, stdout=log, stderr=log, start_new_session=True)
        ends = time.monotonic() + limit_s
        try:
            while time.monotonic() < ends:
                # Every child: a process whose parent ended is one, and tests wait until there is no such process.
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == process.pid:
                    process.returncode = os.waitstatus_to_exitcode(status)
                    return process.returncode
                if not pid:
                    time.sleep(0.05)
            return None
        finally:
            _end_children()

    def pytest(
        self, chosen: list[str], budget_s: float, *options: str
    ) -> tuple[int | None, dict[str, float], list[str]]:
        """Tests and files, of which none begins after the budget: exit status, seconds of what passed, what failed."""
        for name, text in {"tests": "", "current": "", "chosen": "\n".join(chosen), "budget": str(budget_s)}.items():
            (self.notes / name).write_text(text)
        files = dict.fromkeys(name.split("::")[0] for name in chosen)
        command = [str(self.bin / "python"), "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
        command += ["-p", "mutation_probe", "--basetemp", str(self.place / "t"), "-m", "not full and not gpu"]
        command += [*options, *(f"--deselect={name}" for name in self.broken if name.split("::")[0] in files), *files]
        code = self.run(command, budget_s + 240)
        reports = [line.split("\t") for line in (self.notes / "tests").read_text().splitlines()]
        failed = list(dict.fromkeys(name for outcome, _, _, name in reports if outcome == "failed"))
        called = {name for outcome, when, _, name in reports if (outcome, when) == ("passed", "call")} - set(failed)
        return code, {name: float(seconds) for _, _, seconds, name in reports if name in called}, failed


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def _end_children() -> None:
    """Kills the processes that a run left; those without a parent are children of this one, see `mutations.main`."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while found := children.read_text().split():
        for pid in found:
            os.kill(int(pid), signal.SIGKILL)
            os.waitpid(int(pid), 0)
