"""A throwaway sandbox for a stdio server: copies of its data, a home and a working directory.

Probes write. So the server is started on copies: paths in its arguments and variables that hold data, its home, its
temporary and its working directory are replaced by ones below a directory that is removed afterwards, and the kernel
refuses the process to write and to connect anywhere else (`confined`). What it wrote tells where it keeps state, and
which addresses it was refused whether its world is on this machine.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, count, islice
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import TypeVar

from mcp_rollout.gateway.config.models import GatewayConfig, Kind, ServerConfig, Start
from mcp_rollout.gateway.leases.janitor import LEASE_DIR, names_lease_dir
from mcp_rollout.gateway.transport.python_program import PythonProgram
from mcp_rollout.rollout.doctor.confined import ANY, abi
from mcp_rollout.rollout.doctor.entry_data import Data, absolute_program, data_of

_CONFINED = Path(__file__).with_name("confined.py")
_LAUNCHERS = frozenset("npx npm pnpm yarn bunx bun uvx uv pipx".split())
"""Programs that may first download the server: their caches stay writable."""
_CACHES = (".npm", ".cache/uv", ".local/share/uv", ".bun", ".local/share/pnpm", ".cache/node", ".local/pipx")
_DEVICES = tuple(f"/dev/{name}" for name in "null zero full tty random urandom ptmx pts".split())
_CONTAINERS = frozenset("docker podman nerdctl ssh kubectl wsl".split())
"""Programs whose server runs elsewhere, out of reach of the kernel's rules for this process."""
_MOST_BYTES, _MOST_FILES = 64 << 20, 4000
AnyConfig = TypeVar("AnyConfig", bound=GatewayConfig)
HOME, WORK, TMP = "home", "work", "tmp"
_RECORD, PREFIX = "refused", "mcp-rollout-doctor-"
NO_PROGRAM = "there is no such program"
_BELOW_LEASE_DIR = re.compile(re.escape(LEASE_DIR) + r"/([^\s:,;=]+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class EntryChanges:
    """What to write into an entry so that each lease has its own directory."""

    args: dict[int, str] = field(default_factory=dict[int, str])
    """Arguments by position."""
    env: dict[str, str] = field(default_factory=dict[str, str])
    cwd: str | None = None
    data: dict[str, str] = field(default_factory=dict[str, str])
    """What is there already and has to be in each lease's directory: name there, and where it is now."""

    def __str__(self) -> str:
        parts = [f"args[{index}]: {text}" for index, text in self.args.items()]
        parts += [f"env.{name}: {text}" for name, text in self.env.items()]
        return ", ".join([*parts, *([f"cwd: {self.cwd}"] if self.cwd else [])])


@dataclass(kw_only=True, slots=True)
class Throwaway:
    """The template of a server's places, and the entry on a copy of it."""

    root: Path
    entry: ServerConfig
    page_port: int
    word: str
    """What arguments name; a file of this name is there from the beginning."""
    places: Mapping[Path, str]
    """What `lease_places` returned for the entries of the file."""
    granted: tuple[str, ...] = ()
    """Paths that it may write to where they are, and addresses that it may reach, as `confined` takes them."""
    copies: list[Data] = field(default_factory=list[Data])
    left: dict[Path, str] = field(default_factory=dict[Path, str])
    """Data that the entry names and that cannot be copied, each with the reason. It stays where it is, and is not
    written to unless named."""

    @property
    def alone(self) -> bool:
        """Whether all that it changes is in its places, so that each world is as the first one."""
        return not self.granted

    def refused(self) -> tuple[str, ...]:
        """The addresses that it was not let reach."""
        with suppress(FileNotFoundError):
            return tuple(dict.fromkeys((self.root / _RECORD).read_text(errors="replace").splitlines()))
        return ()

    @property
    def template(self) -> Path:
        return self.root / "template"

    def prepare(self) -> str:
        """Copy the data that the entry names. Returns why some of it cannot be copied, empty where all is."""
        for name in (HOME, WORK, TMP):
            (self.template / name).mkdir(parents=True)
        packages = Path("node_modules").absolute()
        if self.launched and self.entry.cwd is None and packages.is_dir():
            # `npx` takes what is installed in the working directory before it downloads.
            (self.template / WORK / packages.name).symlink_to(packages)
        for data in data_of(self.entry):
            copy = self.template / self.places[data.source]
            if data.source in self.copied or not (fault := _copied(data.source, copy)):
                self.copies.append(data)
                continue
            shutil.rmtree(copy, ignore_errors=True)
            if data.whole:
                self.left[data.source] = fault
        # A file that is there before the first call, for tools that only look.
        for place in (WORK, *self.copied.values()):
            with suppress(OSError):  # a file, or a directory that is not to be written to
                (self.template / place / f"{self.word}.txt").write_text("one line\n")
        return "; ".join(self.left.values())

    @property
    def copied(self) -> dict[Path, str]:
        """The originals of the copies, and where the copies are in each place."""
        return {each.source: self.places[each.source] for each in self.copies}

    @property
    def launched(self) -> bool:
        return Path(self.entry.command or "").name in _LAUNCHERS

    def world(self) -> tuple[ServerConfig, Path]:
        """The entry on a fresh copy of the template, and that copy."""
        place = Path(mkdtemp(prefix="world", dir=self.root))
        shutil.copytree(self.template, place, symlinks=True, dirs_exist_ok=True)
        return self._placed(str(place), [str(place), *([LEASE_DIR] if names_lease_dir(self.entry) else [])]), place

    def forked(self, program: PythonProgram) -> tuple[ServerConfig, Path]:
        """As `world`, and forked; confined by an interpreter that is the entry's behind `confined`."""
        entry, place = self.world()
        at = entry.args.index(str(_CONFINED)) + 4
        wrapper = self.root / "python"
        confined = [entry.command or "", *entry.args[:at], program.interpreter[0]]
        wrapper.write_text(f'#!/bin/sh\nexec {shlex.join(confined)} "$@"\n')
        wrapper.chmod(0o700)
        args = (*program.interpreter[1:], *program.main, *entry.args[at + 1 + program.skipped :])
        return entry.model_copy(update={"command": str(wrapper), "args": args, "start": Start.FORK}), place

    def per_lease(self) -> ServerConfig:
        """The entry with a copy of the template for each lease."""
        return self._placed(LEASE_DIR, [LEASE_DIR])

    def _placed(self, place: str, writable: list[str]) -> ServerConfig:
        entry, moved = self.entry, self._moved(place, {*self.copied})

        def text(original: str) -> str:
            return moved.get(original) or absolute_program(original, entry.cwd)

        real_home, command = Path.home(), entry.command or ""
        home, tmp = f"{place}/{HOME}", f"{place}/{TMP}"
        env = {
            "HOME": home,
            **dict.fromkeys(("TMPDIR", "TMP", "TEMP"), tmp),
            "XDG_CACHE_HOME": f"{home}/.cache",
            "XDG_DATA_HOME": f"{home}/.local/share",
            "XDG_CONFIG_HOME": f"{home}/.config",
            "PYTHONUSERBASE": str(real_home / ".local"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        addresses = [each for each in self.granted if not each.startswith("/")]
        if self.launched:
            env |= {
                "npm_config_cache": str(real_home / ".npm"),
                "UV_CACHE_DIR": str(real_home / ".cache/uv"),
                "UV_TOOL_DIR": str(real_home / ".local/share/uv/tools"),
                "UV_PYTHON_INSTALL_DIR": str(real_home / ".local/share/uv/python"),
            }
            env |= {} if addresses else {"npm_config_offline": "true", "UV_OFFLINE": "1"}
            writable = [*writable, *(str(real_home / cache) for cache in _CACHES)]
        if entry.cwd is None:
            # `python -m` finds modules in the working directory.
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), os.getcwd()]))
        env |= {name: text(value) for name, value in entry.env.items()}
        placed = {
            # Not a Python server, but the program that confines it: `forked` makes one of it.
            "start": Start.SPAWN,
            "command": command if os.sep not in command else str(Path(entry.cwd or ".", command).absolute()),
            "args": tuple(text(argument) for argument in entry.args),
            "env": env,
            "cwd": text(entry.cwd) if entry.cwd else f"{place}/{WORK}",
        }
        if not unconfined():
            paths = [each for each in self.granted if each.startswith("/")]
            rules = ":".join([*writable, *paths, *_DEVICES, *_shared_memory()])
            reached = ANY if ANY in addresses else ",".join([f"127.0.0.1 {self.page_port}", *self.granted])
            confine = ("-I", "-S", str(_CONFINED), rules, reached, str(self.root / _RECORD), placed["command"])
            placed |= {"command": sys.executable, "args": (*confine, *placed["args"])}
        return entry.model_copy(update=placed)

    def _moved(self, place: str, sources: Collection[Path]) -> dict[str, str]:
        """The entry's texts that name these data, with the copies below `place` instead."""
        targets: dict[str, dict[str, str]] = {}
        for each in self.copies:
            if each.source in sources:
                targets.setdefault(each.text, {})[each.path] = f"{place}/{self.places[each.source]}"
        return {text: _replaced(text, paths) for text, paths in targets.items()}

    def own_directory(self, changed: tuple[str, ...]) -> EntryChanges:
        """The changes to the entry that give each lease its own copy of the places of these files."""
        tops = {name.split("/", 1)[0] for name in changed}
        data = {place: source for source, place in self.copied.items() if place.split("/", 1)[0] in tops}
        moved = self._moved(LEASE_DIR, data.values())
        args = {index: moved[text] for index, text in enumerate(self.entry.args) if text in moved}
        env = {name: moved[text] for name, text in self.entry.env.items() if text in moved}
        if HOME in tops:
            env["HOME"] = LEASE_DIR
        if not tops:  # files in the temporary directory are not among those that are listed
            env["TMPDIR"] = LEASE_DIR
        cwd = LEASE_DIR if WORK in tops and self.entry.cwd is None else moved.get(self.entry.cwd or "")
        there = {place: str(source) for place, source in data.items() if source.exists()}
        return EntryChanges(args=args, env=env, cwd=cwd, data=there)

    def changed(self, place: Path) -> tuple[str, ...]:
        """The files below `place` that are new, or other than in the template."""
        found: list[str] = []
        for directory, _, names in os.walk(place):
            for name in names:
                file = Path(directory, name)
                relative = file.relative_to(place)
                if relative.parts[0] != TMP and not _same(file, self.template / relative):
                    found.append(str(relative))
        return tuple(sorted(found))


@contextmanager
def on_copies(config: AnyConfig) -> Generator[AnyConfig]:
    """The configuration with its stdio servers on copies of their data, for what does more than examine one server.

    They may reach every address: only for listing tools, and calling those that are annotated read-only.
    """
    with TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as directory:
        servers, places = dict(config.servers), lease_places(config.servers.values())
        for index, (name, entry) in enumerate(config.servers.items()):
            if not why_not(entry):
                root = Path(directory, str(index))
                made = Throwaway(root=root, entry=entry, page_port=0, word="file", places=places, granted=(ANY,))
                made.prepare()
                servers[name] = made.world()[0]
        yield config.model_copy(update={"servers": servers})


def why_not(entry: ServerConfig) -> str:
    """Why the server cannot have a throwaway place, empty where it can."""
    if entry.kind is not Kind.STDIO:
        return "it is not a process of ours"
    if Path(entry.command or "").name in _CONTAINERS:
        return f"{Path(entry.command or '').name} runs it elsewhere"
    if shutil.which(entry.command or "") is None and not os.path.isfile(Path(entry.cwd or ".", entry.command or "")):
        return NO_PROGRAM
    return ""


@cache
def unconfined() -> bool:
    """Whether this system cannot confine a process, as before Linux 5.13 and in some containers."""
    tried = (sys.executable, "-I", "-S", str(_CONFINED), os.devnull, "", os.devnull, "true")
    return abi() < 1 or subprocess.run(tried, capture_output=True, check=False).returncode != 0


@cache
def _shared_memory() -> tuple[str, ...]:
    """The directory of shared memory, unless other programs had something in it before the first server started."""
    return () if os.path.isdir("/dev/shm") and os.listdir("/dev/shm") else ("/dev/shm",)


def lease_directories(entry: ServerConfig) -> tuple[str, ...]:
    """What the entry names below `${lease.dir}`, relative to it: arguments first, for they say where data is."""
    texts = (*entry.args, *entry.env.values(), entry.cwd or "")
    return tuple(dict.fromkeys(name for text in texts for name in _BELOW_LEASE_DIR.findall(text)))


def lease_places(entries: Collection[ServerConfig]) -> dict[Path, str]:
    """Where data that the entries name is below `${lease.dir}`, which all of them share: under its own name, or in a
    directory that has nothing else if that name is taken."""
    taken = {HOME, WORK, TMP, *(name.split("/", 1)[0] for entry in entries for name in lease_directories(entry))}
    places: dict[Path, str] = {}
    for source in dict.fromkeys(data.source for entry in entries for data in data_of(entry)):
        name = source.name if source.name not in ("", "..") else "root"
        top = next(each for each in chain([name], map("data{}".format, count(2))) if each not in taken)
        taken.add(top)
        places[source] = name if top == name else f"{top}/{name}"
    return places


def _replaced(text: str, targets: Mapping[str, str]) -> str:
    """The text with each path replaced; the only one is its end, or is found by its whole length."""
    path = next(iter(targets))
    if len(targets) == 1 and text.endswith(path):
        return text.removesuffix(path) + targets[path]
    longest_first = sorted(targets, key=len, reverse=True)
    return re.sub("|".join(map(re.escape, longest_first)), lambda found: targets[found[0]], text)


def _copied(source: Path, target: Path) -> str:
    """Copy data. Returns why that is not possible, empty where it is."""
    below = (Path(directory, name) for directory, _, names in os.walk(source) for name in names)
    files = [source.resolve()] if source.is_file() else list(islice(below, _MOST_FILES + 1))
    try:
        if len(files) > _MOST_FILES or sum(file.lstat().st_size for file in files) > _MOST_BYTES:
            return f"{source} is too large to copy (more than {_MOST_BYTES >> 20} MiB or {_MOST_FILES} files)"
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True)
        elif files:
            shutil.copy2(source, target)
    except OSError as error:
        # That of a directory has source, target and reason of each failure.
        reason = error.args[0][0][2] if isinstance(error, shutil.Error) else error
        return f"its data cannot be copied: {reason}"
    return ""


def _same(file: Path, before: Path) -> bool:
    try:
        now, then = file.lstat(), before.lstat()
        return now.st_size == then.st_size and (file.is_symlink() or file.read_bytes() == before.read_bytes())
    except OSError:
        return False
