"""A throwaway sandbox for a stdio server: copies of its data, a home and a working directory.

Probes write. So the server is started on copies: paths in its arguments and variables that hold data, its home, its
temporary and its working directory are replaced by ones below a directory that is removed afterwards, and the kernel
refuses the process to write anywhere else (`confined`). What it wrote tells where it keeps state.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path

from gateway.config.models import Kind, ServerConfig, Start
from gateway.leases.janitor import LEASE_DIR, names_lease_dir
from rollout.doctor.confined import ANY_PORT, abi

_CONFINED = Path(__file__).with_name("confined.py")
_LAUNCHERS = frozenset("npx npm pnpm yarn bunx bun uvx uv pipx".split())
"""Programs that may first download the server: they keep the network, and their caches writable."""
_CACHES = (".npm", ".cache/uv", ".local/share/uv", ".bun", ".local/share/pnpm", ".cache/node", ".local/pipx")
_DEVICES = (
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/tty",
    "/dev/random",
    "/dev/urandom",
    "/dev/ptmx",
    "/dev/pts",
    "/dev/shm",
)
_CONTAINERS = frozenset("docker podman nerdctl ssh kubectl wsl".split())
"""Programs whose server runs elsewhere, out of reach of the kernel's rules for this process."""
_PROGRAM_SUFFIXES = frozenset(".py .pyz .js .mjs .cjs .ts .mts .tsx .jar .sh .rb .php .wasm .exe .whl .toml".split())
_PROGRAM_OPTIONS = frozenset(
    "--directory --project --from --with --python --package --prefix --require --import".split()
)
_PROGRAM_VARIABLES = frozenset(
    "PATH PYTHONPATH PYTHONHOME NODE_PATH LD_LIBRARY_PATH VIRTUAL_ENV JAVA_HOME CLASSPATH GOPATH".split()
)
_DATA_SUFFIXES = frozenset(
    ".db .sqlite .sqlite3 .duckdb .json .jsonl .csv .tsv .txt .md .yaml .yml .parquet .xlsx".split()
)
_MOST_BYTES, _MOST_FILES = 64 << 20, 4000
HOME, WORK, TMP = "home", "work", "tmp"
NO_PROGRAM = "there is no such program"
_BELOW_LEASE_DIR = re.compile(re.escape(LEASE_DIR) + r"/([^\s:,;=]+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Relocation:
    """One place of the entry that names data: an argument, a variable, or the working directory."""

    original: str
    """The text in the entry."""
    path: str
    """The path within that text."""
    name: str
    """The directory of the copy in a throwaway place."""
    place: str
    """Where the copy is in the directory of a lease."""


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
    relocations: list[Relocation] = field(default_factory=list[Relocation])
    worlds: int = 0

    @property
    def template(self) -> Path:
        return self.root / "template"

    def prepare(self) -> str:
        """Copy the data that the entry names. Returns why that is not possible, empty where it is."""
        try:
            return self._fill_template()
        except shutil.Error as error:  # of a directory: source, target and reason of each failure
            return f"its data cannot be copied: {error.args[0][0][2]}"
        except OSError as error:
            return f"its data cannot be copied: {error}"

    def _fill_template(self) -> str:
        for name in (HOME, WORK, TMP):
            (self.template / name).mkdir(parents=True)
        packages = Path("node_modules").absolute()
        if Path(self.entry.command or "").name in _LAUNCHERS and self.entry.cwd is None and packages.is_dir():
            # `npx` takes what is installed in the working directory before it downloads.
            (self.template / WORK / packages.name).symlink_to(packages)
        for text in _data_texts(self.entry):
            path = _path_in(text)
            name, source = f"data{len(self.relocations) or ''}", _resolved(path, self.entry.cwd)
            self.relocations.append(Relocation(original=text, path=path, name=name, place=self.places[source]))
            if fault := _copy(source, self.template / name / _base(path)):
                return fault
        # A file that is there before the first call, for tools that only look.
        for directory in (self.template / WORK, *(each for each in self.template.glob("data*/*") if each.is_dir())):
            (directory / f"{self.word}.txt").write_text("one line\n")
        return ""

    def world(self) -> tuple[ServerConfig, Path]:
        """The entry on a fresh copy of the template, and that copy."""
        self.worlds += 1
        place = self.root / f"world{self.worlds}"
        shutil.copytree(self.template, place, symlinks=True)
        return self._placed(str(place), [str(place), *([LEASE_DIR] if names_lease_dir(self.entry) else [])]), place

    def per_lease(self) -> ServerConfig:
        """The entry with a copy of the template for each lease."""
        return self._placed(LEASE_DIR, [LEASE_DIR])

    def _placed(self, place: str, writable: list[str]) -> ServerConfig:
        entry, at = self.entry, {moved.original: moved for moved in self.relocations}

        def text(original: str) -> str:
            if (moved := at.get(original)) is None:
                return _absolute(original, entry.cwd)
            return _moved(moved, f"{place}/{moved.name}/{_base(moved.path)}")

        real_home, command = Path.home(), entry.command or ""
        launched = Path(command).name in _LAUNCHERS
        home = f"{place}/{HOME}"
        env = {
            "HOME": home,
            "TMPDIR": f"{place}/{TMP}",
            "XDG_DATA_HOME": f"{home}/.local/share",
            "XDG_CONFIG_HOME": f"{home}/.config",
            "XDG_STATE_HOME": f"{home}/.local/state",
            "PYTHONUSERBASE": str(real_home / ".local"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        if launched:
            env |= {
                "npm_config_cache": str(real_home / ".npm"),
                "UV_CACHE_DIR": str(real_home / ".cache/uv"),
                "UV_TOOL_DIR": str(real_home / ".local/share/uv/tools"),
                "UV_PYTHON_INSTALL_DIR": str(real_home / ".local/share/uv/python"),
            }
            writable = [*writable, *(str(real_home / cache) for cache in _CACHES)]
        if entry.cwd is None:
            # `python -m` finds modules in the working directory.
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), os.getcwd()]))
        env |= {name: text(value) for name, value in entry.env.items()}
        args = [text(argument) for argument in entry.args]
        port = ANY_PORT if launched else str(self.page_port)
        program = command if os.sep not in command else str(Path(entry.cwd or ".", command).absolute())
        rules = [*writable, *_DEVICES]
        return entry.model_copy(
            update={
                # The command is not a Python server any more, but the program that confines it: nothing to fork from.
                "start": Start.SPAWN,
                "command": sys.executable,
                "args": ("-I", "-S", str(_CONFINED), ":".join(rules), port, program, *args),
                "env": env,
                "cwd": entry.cwd or f"{place}/{WORK}",
            }
        )

    def own_directory(self, changed: tuple[str, ...]) -> EntryChanges:
        """The changes to the entry that give each lease its own copy of the places of these files."""
        tops = {name.split("/", 1)[0] for name in changed}
        relocations = [each for each in self.relocations if each.name in tops]
        moved = {each.original: _moved(each, f"{LEASE_DIR}/{each.place}") for each in relocations}
        args = {index: moved[text] for index, text in enumerate(self.entry.args) if text in moved}
        env = {name: moved[text] for name, text in self.entry.env.items() if text in moved}
        if HOME in tops:
            env["HOME"] = LEASE_DIR
        if not tops:  # files in the temporary directory are not among those that are listed
            env["TMPDIR"] = LEASE_DIR
        cwd = LEASE_DIR if WORK in tops and self.entry.cwd is None else None
        sources = {each.place: _resolved(each.path, self.entry.cwd) for each in relocations}
        data = {place: str(source) for place, source in sources.items() if source.exists()}
        return EntryChanges(args=args, env=env, cwd=cwd, data=data)

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


def why_not(entry: ServerConfig) -> str:
    """Why the server cannot have a throwaway place, empty where it can."""
    if entry.kind is not Kind.STDIO:
        return "it is not a process of ours"
    if abi() < 1:
        return "this system cannot confine a process to a directory (Landlock, Linux 5.13)"
    if Path(entry.command or "").name in _CONTAINERS:
        return f"{Path(entry.command or '').name} runs it elsewhere"
    if shutil.which(entry.command or "") is None and not os.path.isfile(Path(entry.cwd or ".", entry.command or "")):
        return NO_PROGRAM
    return ""


def lease_directories(entry: ServerConfig) -> tuple[str, ...]:
    """What the entry names below `${lease.dir}`, relative to it: arguments first, for they say where data is."""
    texts = (*entry.args, *entry.env.values(), entry.cwd or "")
    return tuple(dict.fromkeys(name for text in texts for name in _BELOW_LEASE_DIR.findall(text)))


def lease_places(entries: Collection[ServerConfig]) -> dict[Path, str]:
    """Where data that the entries name is below `${lease.dir}`, which all of them share: under its own name, or in a
    directory that has nothing else if that name is taken."""
    taken = {name.split("/", 1)[0] for entry in entries for name in lease_directories(entry)}
    places: dict[Path, str] = {}
    for entry in entries:
        for path in map(_path_in, _data_texts(entry)):
            source, base = _resolved(path, entry.cwd), _base(path)
            if source not in places:
                top = next(name for name in chain([base], map("data{}".format, count(2))) if name not in taken)
                taken.add(top)
                places[source] = base if top == base else f"{top}/{base}"
    return places


def _data_texts(entry: ServerConfig) -> list[str]:
    """Arguments and variables that name data; the program and its modules are left where they are."""
    texts: list[str] = []
    if names_lease_dir(entry):
        return texts
    option = ""
    for argument in entry.args:
        is_option, is_program = argument.startswith("-"), option in _PROGRAM_OPTIONS
        if not is_program and (not is_option or "=" in argument) and not _looks_like_program(argument, entry.cwd):
            texts.append(argument)
        option = argument
    texts += [text for name, text in entry.env.items() if name not in _PROGRAM_VARIABLES]
    return [text for text in dict.fromkeys(texts) if _is_data(_path_in(text), entry.cwd)]


def _looks_like_program(argument: str, cwd: str | None) -> bool:
    path = _resolved(argument, cwd)
    # Unlike a path's own methods, those of `os.path` answer where a directory is unreadable or a text no path at all.
    return path.suffix in _PROGRAM_SUFFIXES or (os.path.isfile(path) and path.suffix not in _DATA_SUFFIXES)


def _is_data(path: str, cwd: str | None) -> bool:
    if "://" in path or "\n" in path or os.pathsep in path or not path or len(path) > 1000:
        return False
    absolute = path.startswith(("/", "~"))
    if not absolute and path not in (".", "..") and Path(path).suffix not in _DATA_SUFFIXES and os.sep not in path:
        return False
    resolved = _resolved(path, cwd)
    if resolved.suffix in _PROGRAM_SUFFIXES or (os.path.isfile(resolved) and os.access(resolved, os.X_OK)):
        return False
    return (
        os.path.exists(resolved) or (absolute and resolved.parent != Path("/")) or Path(path).suffix in _DATA_SUFFIXES
    )


def _path_in(text: str) -> str:
    return text.partition("=")[2] if text.startswith("--") and "=" in text else text


def _resolved(path: str, cwd: str | None) -> Path:
    return Path(cwd or ".", os.path.expanduser(path)).absolute()


def _base(path: str) -> str:
    """The last part of a path; the name of a directory that is written as `.` or `..` is not kept."""
    name = Path(path).name
    return "root" if name in ("", "..") else name


def _moved(moved: Relocation, target: str) -> str:
    return moved.original.replace(moved.path, target)


def _absolute(argument: str, cwd: str | None) -> str:
    """A relative path of an existing program as an absolute one, since the working directory is another."""
    path = Path(cwd or ".", argument)
    is_relative = not argument.startswith(("-", "/")) and (os.sep in argument or path.suffix in _PROGRAM_SUFFIXES)
    return str(path.absolute()) if cwd is None and is_relative and os.path.isfile(path) else argument


def _copy(source: Path, target: Path) -> str:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        size = files = 0
        for directory, _, names in os.walk(source):
            files += len(names)
            size += sum(Path(directory, name).lstat().st_size for name in names)
            if size > _MOST_BYTES or files > _MOST_FILES:
                return f"{source} is too large to copy (more than {_MOST_BYTES >> 20} MiB or {_MOST_FILES} files)"
        shutil.copytree(source, target, symlinks=True)
    elif source.is_file():
        if source.stat().st_size > _MOST_BYTES:
            return f"{source} is too large to copy (more than {_MOST_BYTES >> 20} MiB)"
        shutil.copy2(source, target)
    return ""


def _same(file: Path, before: Path) -> bool:
    try:
        now, then = file.lstat(), before.lstat()
        return now.st_size == then.st_size and (file.is_symlink() or file.read_bytes() == before.read_bytes())
    except OSError:
        return False
