"""A server's main module: run it as the interpreter does, and interrupt it where it makes its event loop."""

from __future__ import annotations

import asyncio.base_events
import importlib.util
import os
import sys
import types
from collections.abc import Callable
from typing import Any


class Program:
    """The main module, compiled once.

    Args:
        words: `-m` and a module, or the path of a script.
        arguments: The program's own. From now on `sys.argv` and `sys.path` are those of a spawned process.
    """

    def __init__(self, words: list[str], arguments: list[str]) -> None:
        self._spec: Any = None
        self._path = words[-1]
        if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
            sys.path.insert(0, os.getcwd() if words[0] == "-m" else os.path.dirname(os.path.realpath(self._path)))
        sys.argv = [words[0], *arguments]
        if words[0] != "-m":
            with open(self._path, "rb") as file:
                self._code = compile(file.read(), self._path, "exec", dont_inherit=True)
            return
        self._spec = importlib.util.find_spec(words[1])
        if self._spec is not None and self._spec.submodule_search_locations is not None:
            self._spec = importlib.util.find_spec(words[1] + ".__main__")
        if self._spec is None:
            raise ImportError(f"no module named {words[1]}")
        self._code = self._spec.loader.get_code(self._spec.name)
        sys.argv[0] = self._path = self._spec.origin

    def run(self, name: str) -> None:
        """Run the main module in this process under this name, as the interpreter runs `__main__`."""
        main = types.ModuleType(name)
        main.__file__, main.__spec__ = self._path, self._spec
        main.__package__ = self._spec.parent if self._spec is not None else None
        main.__loader__ = self._spec.loader if self._spec is not None else None
        sys.modules[name] = sys.modules["__main__"] = main
        exec(self._code, main.__dict__)


def before_first_loop(act: Callable[[], object]) -> None:
    """Call `act` once, before the first event loop of asyncio is made in this process.

    A server of the SDK has all its tools by then. Forked there, one of the retail world takes 22 ms of CPU to start and
    9.7 MB; where each fork runs the main module, 109 ms and 18.3 MB (`python -m lab.benchmarks start`).
    """
    loop: Any = asyncio.base_events.BaseEventLoop
    original = loop.__init__

    def first(self: Any) -> None:
        loop.__init__ = original
        act()
        original(self)

    loop.__init__ = first
