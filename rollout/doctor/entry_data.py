"""The paths that a server's entry names: data, told from programs and their modules by name and place."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from mcp_rollout.gateway.config.models import ServerConfig
from mcp_rollout.gateway.connection.secret_values import is_secret_name
from mcp_rollout.gateway.leases.janitor import names_lease_dir

_PROGRAM_SUFFIXES = frozenset(".py .pyz .js .mjs .cjs .ts .mts .tsx .jar .sh .rb .php .wasm .exe .whl .toml".split())
_PROGRAM_OPTIONS = frozenset(
    "--directory --project --from --with --python --package --prefix --require --import".split()
)
_PROGRAM_VARIABLES = frozenset(
    "PATH PYTHONPATH PYTHONHOME NODE_PATH LD_LIBRARY_PATH VIRTUAL_ENV JAVA_HOME CLASSPATH GOPATH".split()
)
_INTERPRETER = re.compile(r"(python|node|deno|bun|ruby|perl|php|sh|bash)[\d.]*$")
_DATA_SUFFIXES = frozenset(
    ".db .sqlite .sqlite3 .duckdb .json .jsonl .csv .tsv .txt .md .yaml .yml .parquet .xlsx".split()
)
_ASSIGNED = re.compile(r"-{0,2}\w[\w.-]*=")
_IN_TEXT = re.compile(r"(?:(?<![\w./])~)?/[^\s\"'`,;:=()\[\]{}<>|&$?#]+")
"""An absolute path within a longer text, such as a shell's command, a list or a URL."""


class Data(NamedTuple):
    """Data that an entry names."""

    text: str
    """The argument, the variable's value, or the working directory."""
    path: str
    """The path in that text."""
    source: Path
    """The absolute path, with its links as they are."""
    whole: bool
    """Whether the text names nothing else."""


def data_of(entry: ServerConfig) -> list[Data]:
    """The data that an entry names in arguments, variables and as its working directory.

    The program and its modules are left where they are. A path among others, and the working directory, are data if
    they exist.
    """
    texts: list[str] = []
    if names_lease_dir(entry):
        return []
    option, script_follows = "", bool(_INTERPRETER.match(Path(entry.command or "").name))
    for argument in entry.args:
        is_option, is_program = argument.startswith("-"), option in _PROGRAM_OPTIONS
        is_script = script_follows and os.path.isfile(_resolved(argument, entry.cwd))
        if not is_program and not is_script and (not is_option or "=" in argument):
            texts.append(argument)
        script_follows = script_follows and is_option
        option = argument
    for name, text in entry.env.items():
        # A key may look like a path.
        if name not in _PROGRAM_VARIABLES and (os.path.exists(os.path.expanduser(text)) or not is_secret_name(name)):
            texts.append(text)
    found: list[tuple[str, str, bool]] = []
    for text in dict.fromkeys(texts):
        if _is_data(path := _path_in(text), entry.cwd):
            found.append((text, path, True))
        else:
            inside = dict.fromkeys(re.sub("^/+", "/", path) for path in _IN_TEXT.findall(text))
            there = (path for path in inside if os.path.isfile(whole := _resolved(path, None)) or os.path.isdir(whole))
            found += [(text, path, False) for path in there if _is_data(path, entry.cwd)]
    found += [(entry.cwd, entry.cwd, False)] if entry.cwd else []
    return [Data(text, path, _resolved(path, entry.cwd), whole) for text, path, whole in found]


def _is_data(path: str, cwd: str | None) -> bool:
    if "://" in path or "\n" in path or os.pathsep in path or not path or len(path) > 1000:
        return False
    if path.startswith(("/proc/", "/sys/")):
        return False
    absolute = path.startswith(("/", "~"))
    if not absolute and path not in (".", "..") and Path(path).suffix not in _DATA_SUFFIXES and os.sep not in path:
        return False
    whole = _resolved(path, cwd)
    # Unlike a path's own methods, those of `os.path` answer where a directory is unreadable or a text no path at all.
    if whole.suffix in _PROGRAM_SUFFIXES or (os.path.isfile(whole) and os.access(whole, os.X_OK)):
        return False
    return os.path.exists(whole) or (absolute and whole.parent != Path("/")) or Path(path).suffix in _DATA_SUFFIXES


def _path_in(text: str) -> str:
    """The path in `--name=path` or `NAME=path`, else the whole text."""
    return text.partition("=")[2] if _ASSIGNED.match(text) and not os.path.exists(text) else text


def _resolved(path: str, cwd: str | None) -> Path:
    return Path(cwd or ".", os.path.expanduser(path)).absolute()


def absolute_program(argument: str, cwd: str | None) -> str:
    """A relative path of an existing program as an absolute one, since the working directory is another."""
    path = Path(cwd or ".", argument)
    is_relative = not argument.startswith(("-", "/")) and (os.sep in argument or path.suffix in _PROGRAM_SUFFIXES)
    return str(path.absolute()) if cwd is None and is_relative and os.path.isfile(path) else argument
