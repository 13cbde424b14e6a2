"""Import user code that a server entry, an environment file or an option names as `MODULE:NAME` or `FILE.py:NAME`."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from pkgutil import iter_modules
from threading import RLock
from types import ModuleType

from mcp_rollout.gateway.config.pydantic_errors import near
from mcp_rollout.gateway.errors import ConfigError

_IMPORTING = RLock()
"""Held by the thread that imports a file, which may import another one."""


def import_user_module(name: str, *, key: str, file: str | None = None) -> ModuleType:
    """Import a module, or a file `FILE.py`, which is executed once.

    Raises:
        ConfigError: there is no such module, or it raises when it is imported.
    """
    try:
        return _import_file(Path(name)) if name.endswith(".py") else import_module(name)
    except (Exception, SystemExit) as error:  # the boundary of a user's module, which may also call `sys.exit`
        remedy = "correct the module"
        # Not where a module that this one imports is missing: then PYTHONPATH is not to blame for it.
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            remedy = _remedy(str(error.name))
        problem = f"cannot import {name}: {type(error).__name__}: {error}"
        raise ConfigError(problem, file=file, key=key, remedy=remedy) from error


def _import_file(path: Path) -> ModuleType:
    """Import a file, in one thread at a time: environments are loaded in several, and none may see half a module."""
    name = f"{path.stem}_{hashlib.sha256(str(path.absolute()).encode()).hexdigest()[:12]}"
    with _IMPORTING:
        return sys.modules[name] if name in sys.modules else _execute(path, name)


def _execute(path: Path, name: str) -> ModuleType:
    spec = spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # of a path that ends in .py
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:  # a half of a module is not found the next time
        del sys.modules[name]
        raise
    return module


def _remedy(missing: str) -> str:
    """The remedy for a module or package that is missing; all packages above it can be imported."""
    package, _, last = missing.rpartition(".")
    directories = getattr(import_module(package), "__path__", ()) if package else ()
    modules = [module.name for module in iter_modules(directories)]
    if not modules:
        return "add the directory of the module to PYTHONPATH"
    return near(last, modules, f"modules of {package}")


def import_function(path: str, *, key: str, file: str | None = None) -> Callable[..., object]:
    """The callable `MODULE:NAME` or `FILE.py:NAME`.

    Raises:
        ConfigError: there is none.
    """
    module_name, _, name = path.partition(":")
    if not name:
        raise ConfigError(f"{path!r} names no function", file=file, key=key, remedy="write MODULE:FUNCTION")
    found = getattr(import_user_module(module_name, key=key, file=file), name, None)
    if not callable(found):
        problem = f"{module_name} has no function {name!r}"
        raise ConfigError(problem, file=file, key=key, remedy="correct the name, or define it")
    return found
