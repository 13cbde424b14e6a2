"""Detect what a program did before the fork that forks must not share: files, memory, threads, random state."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

_WRITES = frozenset({"os.mkdir", "os.rename", "os.remove", "os.link", "os.symlink", "os.truncate", "sqlite3.connect"})
_REACHES_OUT = frozenset(
    {"socket.connect", "socket.bind", "subprocess.Popen", "os.fork", "os.system", "os.posix_spawn"}
)
_DRAWING = frozenset({"uuid", "secrets", "random", "os"})
"""Modules through which others draw random bytes."""
_GENERATORS = ("_urandom", *(name for name in random.__all__ if hasattr(getattr(random, name), "__self__")))
"""Functions of `random` that draw; `secrets` and `SystemRandom` call the first."""
_OF_ANY_OBJECT = frozenset("__new__ __init__ __getattribute__ __hash__ __doc__ __sizeof__ __class_getitem__".split())
"""What a list has of its own without reading or changing its words."""


class Watch:
    """Installed before the first import, ended after the last one. The first finding counts.

    Args:
        varying: Variables that differ between leases, and `argv` and `cwd` where the arguments and the working
            directory do.
    """

    def __init__(self, varying: list[str]) -> None:
        self._found = ""
        self._on, self._varying = True, frozenset(varying)
        self.own_modules: set[str] = set()
        """Top-level names of the program's own modules. Libraries may draw random bytes: theirs name things."""
        self.own_directory: str | None = None
        """The directory of a script, whose modules are its own."""
        self._files, self._mappings = _open_files(), _shared_mappings()
        self._environ: Any = type(os.environ)
        self._read_variable, self._getcwd = self._environ.__getitem__, os.getcwd
        self._remove_variable, self._list_variables = self._environ.__delitem__, self._environ.__iter__

        def read_variable(environ: Any, name: str) -> str:
            self.read(name)
            return self._read_variable(environ, name)

        def remove_variable(environ: Any, name: str) -> None:
            self.read(name)  # it fails where there is none
            self._remove_variable(environ, name)

        def list_variables(environ: Any) -> Any:
            # Those that differ are not there, so that reading each of the others would not be noted.
            if self._is_within_own(sys._getframe(1)):  # pyright: ignore[reportPrivateUsage]
                for name in sorted(self._varying - {"argv", "cwd"}):
                    self.read(name)
            return self._list_variables(environ)

        self._environ.__getitem__, self._environ.__delitem__ = read_variable, remove_variable
        self._environ.__iter__ = list_variables
        os.getcwd = self._locating
        self._draws = [(random, name, getattr(random, name)) for name in _GENERATORS]
        self._draws += [(os, name, getattr(os, name)) for name in ("urandom", "getrandom") if hasattr(os, name)]
        for module, name, function in self._draws:
            setattr(module, name, self._drawn_by_caller(function))
        sys.addaudithook(self._audit)

    def end(self) -> str:
        """Why the process must not be forked; empty where it may."""
        self._on = False
        for module, name, function in self._draws:
            setattr(module, name, function)
        self._environ.__getitem__, self._environ.__delitem__ = self._read_variable, self._remove_variable
        self._environ.__iter__ = self._list_variables
        os.getcwd = self._getcwd
        if threads := count_threads() - 1:
            return f"it starts {threads} threads before it serves"
        if self._found:
            return self._found
        if left := _open_files() - self._files:
            return f"it keeps {', '.join(sorted(left)[:3])} open before it serves"
        if shared := _shared_mappings() - self._mappings:
            return f"it maps shared memory before it serves: {', '.join(sorted(path for _, path in shared)[:3])}"
        return ""

    def arguments(self, words: list[str]) -> list[str]:
        """`words` for `sys.argv`; where they differ between leases, readings of them are noted."""
        return Arguments(self, words) if "argv" in self._varying else words

    def read(self, name: str) -> None:
        """Note that a variable, `argv` or `cwd` was read."""
        if name in self._varying:
            what = {"argv": "the arguments", "cwd": "the working directory"}.get(name, name)
            self._note(f"reads {what}", ", which differs between leases")

    def _note(self, what: str, why: str = "") -> None:
        if self._on and not self._found:
            self._found = f"it {what} before it serves{why}"

    def _locating(self) -> str:
        self.read("cwd")
        return self._getcwd()

    def _drawn_by_caller(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, which notes when the program's own modules call it."""

        def draw(*args: Any, **kwargs: Any) -> Any:
            if self._on and self._is_own(sys._getframe(1)):  # pyright: ignore[reportPrivateUsage]
                self._note("draws random numbers")
            return function(*args, **kwargs)

        return draw

    def _is_within_own(self, frame: FrameType | None) -> bool:
        """Whether the program's own modules called, also through a library, which is not being imported."""
        while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
            if self._is_own(frame):
                return True
            frame = frame.f_back
        return False

    def _is_own(self, frame: FrameType) -> bool:
        while frame.f_back is not None and frame.f_globals.get("__name__") in _DRAWING:
            frame = frame.f_back
        module = str(frame.f_globals.get("__name__"))
        file = os.path.realpath(frame.f_code.co_filename)
        of_script = self.own_directory is not None and os.path.dirname(file) == self.own_directory
        return of_script or module == "__main__" or module.partition(".")[0] in self.own_modules

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        # A hook cannot be removed: in the forks it returns at once.
        if not self._on or self._found:
            return
        if event == "open":
            path, _, flags = arguments
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if writes and isinstance(path, str) and "__pycache__" not in path and path != os.devnull:
                self._note(f"writes {path}")
        elif event == "os.chdir":
            (path,) = arguments
            if isinstance(path, int) or not os.path.isabs(path):
                self.read("cwd")
        elif event in _REACHES_OUT or (event in _WRITES and not any("__pycache__" in str(each) for each in arguments)):
            self._note(f"calls {event}")


class Arguments(list[str]):
    """Notes readings and changes."""

    def __init__(self, watch: Watch, words: list[str]) -> None:
        super().__init__(words)
        self._watch = watch

    def __radd__(self, other: list[str]) -> list[str]:
        return [*other, *self]

    def note(self) -> None:
        self._watch.read("argv")


def _noting(name: str) -> Callable[..., Any]:
    method = getattr(list, name)

    def noting(self: Arguments, *args: Any, **kwargs: Any) -> Any:
        self.note()
        return method(self, *args, **kwargs)

    return noting


for _name in vars(list).keys() - _OF_ANY_OBJECT:
    setattr(Arguments, _name, _noting(_name))


def count_threads() -> int:
    """Threads of this process, as the kernel counts them."""
    return len(os.listdir("/proc/self/task"))


def _open_files() -> set[str]:
    found: set[str] = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            pass  # the directory that was just listed
    return {path for path in found if not path.startswith("/proc/") and path not in ("/dev/urandom", os.devnull)}


def _shared_mappings() -> set[tuple[str, str]]:
    """Address and path of memory that forks would write to in common: `mmap(-1)`, locks of `multiprocessing`."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        fields = [line.split(None, 5) for line in maps]
    return {(each[0], each[5].strip()) for each in fields if each[1][1] == "w" and each[1][3] == "s"}
