"""A server's main module: import what it imports once, run it in each fork, from memory that is cheap to copy."""

from __future__ import annotations

import ast
import ctypes
import gc
import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from fork_watch import Arguments, Watch

_LATER = ("anyio._backends._asyncio", "mcp.server.stdio", "mcp.server.lowlevel.server", "rich.logging")
"""Modules that servers of the SDK import only when they are made or begin to serve."""
_MADV_COLLAPSE = 25  # since Linux 6.1
_HUGE = 2 << 20


def _adds_directory() -> bool:
    """Whether the interpreter puts the program's directory first on `sys.path`."""
    return not (sys.flags.isolated or getattr(sys.flags, "safe_path", False))


class Program:
    """The main module, compiled once.

    Args:
        words: `-m` and a module, or the path of a script.
        arguments: The program's own. From now on `sys.argv` is what it is in a spawned process.
        watch: Receives the names of the program's own modules.
    """

    def __init__(self, words: list[str], arguments: list[str], watch: Watch) -> None:
        self._by_name = words[0] == "-m"
        self._spec: Any = None
        self._watch = watch
        sys.argv = self._argv = watch.arguments([words[0], *arguments])
        if self._by_name:
            if _adds_directory():
                sys.path.insert(0, os.getcwd())  # noted: where it differs between leases, modules may
            watch.own_modules.add(words[1].partition(".")[0])
            self._spec = importlib.util.find_spec(words[1])
            if self._spec is not None and self._spec.submodule_search_locations is not None:
                self._spec = importlib.util.find_spec(words[1] + ".__main__")
            if self._spec is None:
                raise ImportError(f"no module named {words[1]}")
            self._source = self._spec.loader.get_source(self._spec.name)
            self._code = self._spec.loader.get_code(self._spec.name)
            self._path = self._spec.origin
            plain: type[list[str]] = list
            plain.__setitem__(sys.argv, 0, self._path)  # its own would note it
        else:
            self._path = words[0]
            with open(self._path, "rb") as file:
                self._source = file.read()
            self._code = compile(self._source, self._path, "exec", dont_inherit=True)
            directory = os.path.dirname(os.path.realpath(self._path))
            if _adds_directory():
                sys.path.insert(0, directory)
            if self._path.endswith(".py"):
                watch.own_directory = directory

    def import_dependencies(self) -> None:
        """Import what the main module imports, wherever it occurs outside of functions and classes."""
        package = self._spec.parent if self._spec is not None else None
        for node in _imports(ast.parse(self._source)):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self._import(alias.name, package)
                continue
            base = "." * node.level + (node.module or "")
            module = self._import(base, package)
            for alias in node.names:
                # Only what is not there yet may be a module: importing one replaces an attribute of its name.
                if module is not None and not hasattr(module, alias.name):
                    self._import(base + ("" if base.endswith(".") else ".") + alias.name, package)
        for name in _LATER:
            if "mcp" in sys.modules:
                self._import(name, None)

    def _import(self, name: str, package: str | None) -> types.ModuleType | None:
        if not self._by_name and not self._path.endswith(".py"):
            self._watch.own_modules.add(name.partition(".")[0])  # a console script imports its package
        try:
            return importlib.import_module(name, package)
        except Exception:  # boundary: the program's imports; one that fails here fails again in the fork
            return None

    def run(self, arguments: list[str]) -> None:
        """Run the main module in this process, as the interpreter runs it."""
        main = types.ModuleType("__main__")
        main.__file__, main.__spec__ = self._path, self._spec
        main.__package__ = self._spec.parent if self._spec is not None else None
        main.__loader__ = self._spec.loader if self._spec is not None else None
        sys.modules["__main__"] = main
        # In place, and the program's own changes stay: its modules may have kept or replaced the list.
        if isinstance(self._argv, Arguments):
            self._argv[1:] = arguments
        exec(self._code, main.__dict__)


def _imports(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Import statements outside of functions and classes, except those for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            yield from _imports(node)


def before_first_loop(act: Callable[[], object]) -> None:
    """Call `act` once, before the first event loop of asyncio is made in this process."""
    import asyncio.base_events
    import asyncio.runners

    places: list[Any] = [asyncio.base_events.BaseEventLoop]
    places += (
        [asyncio.runners.Runner] if hasattr(asyncio.runners, "Runner") else []
    )  # for loops that are not a subclass
    originals = [(place, place.__init__) for place in places]

    def make(place: Any, original: Any) -> None:
        def first(self: Any, *args: Any, **kwargs: Any) -> None:
            for each, its_own in originals:
                each.__init__ = its_own
            act()
            original(self, *args, **kwargs)

        place.__init__ = first

    for place, original in originals:
        make(place, original)


def compile_models() -> None:
    """Build what pydantic puts off until the first use, so that no fork has to."""
    pydantic: Any = sys.modules.get("pydantic")
    if pydantic is None:
        return
    objects: list[Any] = gc.get_objects()
    for each in objects:
        try:
            if isinstance(each, type) and issubclass(each, pydantic.BaseModel):
                model: Any = each
                if not model.__pydantic_complete__:
                    model.model_rebuild(raise_errors=False)
            elif isinstance(each, pydantic.TypeAdapter):
                adapter: Any = each
                if not adapter.pydantic_complete:
                    adapter.rebuild(raise_errors=False)
        except Exception:  # boundary: the program's objects; one that fails here fails again where the program uses it
            pass


def share_memory() -> None:
    """Make forks cheap: no collection in a fork writes to what is there now, and its page tables are short."""
    gc.collect()
    gc.freeze()
    _use_huge_pages()


def _use_huge_pages() -> None:
    """Move writable memory into huge pages, of which a fork copies one entry in place of 512.

    A fork that writes to one copies only the 4 KB that it writes to. Where the kernel cannot, nothing changes.
    """
    try:
        madvise = ctypes.CDLL(None).madvise
        with open("/proc/self/maps") as file:
            lines = file.read().splitlines()
    except (OSError, AttributeError):
        return
    for line in lines:
        bounds, access, _, _, inode, *path = line.split(maxsplit=5)
        if "w" not in access or inode != "0" or path not in ([], ["[heap]"]):
            continue
        start, end = (int(bound, 16) for bound in bounds.split("-"))
        for at in range(-(-start // _HUGE) * _HUGE, end - _HUGE + 1, _HUGE):
            madvise(ctypes.c_void_p(at), ctypes.c_size_t(_HUGE), _MADV_COLLAPSE)
