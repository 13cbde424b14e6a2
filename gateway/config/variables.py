"""Environment variables: `${VARIABLE}` in configuration files, and what a server process inherits."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from mcp_rollout.gateway.errors import ConfigError, Faults, raise_all

_VARIABLE = re.compile(r"\$\{([^{}]*)\}")
INHERITED_ENV = frozenset(
    "PATH HOME USER LOGNAME SHELL TERM LANG LANGUAGE TZ TMPDIR TMP TEMP "
    "VIRTUAL_ENV PYTHONPATH LD_LIBRARY_PATH XDG_CACHE_HOME XDG_CONFIG_HOME XDG_DATA_HOME "
    "SSL_CERT_FILE SSL_CERT_DIR NODE_EXTRA_CA_CERTS "
    "SYSTEMROOT SYSTEMDRIVE COMSPEC PATHEXT WINDIR USERPROFILE APPDATA LOCALAPPDATA PROGRAMFILES".split()
)
"""Variables that a server process inherits, in addition to `LC_*` and its entry's `env`. All others, for example tokens
and proxy addresses with credentials, stay with the trainer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Editor:
    """The values that an editor would use for its own variables in a file."""

    folder: Path
    """`${workspaceFolder}`."""
    inputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """Definitions of values that it would prompt for (`inputs` in VS Code's mcp.json), by id."""

    @classmethod
    def of(cls, file: str | Path, inputs: Any = None) -> Editor:
        """The workspace is the parent of `.vscode` or `.cursor`, else the file's directory."""
        folder = Path(file).resolve().parent
        asked: dict[str, Mapping[str, Any]] = {}
        for each in cast("list[Any]", inputs) if isinstance(inputs, list) else []:
            if isinstance(each, Mapping) and "id" in each:
                asked[str(cast("Mapping[str, Any]", each)["id"])] = cast("Mapping[str, Any]", each)
        return cls(folder=folder.parent if folder.name in (".vscode", ".cursor") else folder, inputs=asked)

    def known(self, name: str) -> str | None:
        """The value of an editor's variable; None for any other."""
        match name:
            case "workspaceFolder" | "workspaceRoot":
                return str(self.folder)
            case "workspaceFolderBasename":
                return self.folder.name
            case "userHome":
                return str(Path.home())
            case "pathSeparator" | "/":
                return os.sep
            case _:
                return None


def expand(
    value: Any,
    *,
    file: str | Path | None = None,
    key: str | None = None,
    keep: Collection[str] = (),
    editor: Editor | None = None,
    parameters: Mapping[str, str] | None = None,
) -> Any:
    """Replace the variables in every string inside `value`: `${VAR}`, `${VAR:-default}`, `${env:VAR}`, `${python}`,
    `${here}` (the directory of the file), and with an `editor` `${workspaceFolder}`, `${userHome}`, `${input:ID}` and
    so on.

    `${lease.dir}`, and the names in `keep`, are left for the lease to expand. With `parameters`, only
    `${parameters.NAME}` is replaced.

    Raises:
        ConfigError: a variable is not set, or there is no such parameter; `ConfigErrors` for several.
    """
    faults = Faults()
    expanded = _expand(value, _Place(file, key, keep, editor, parameters), faults)
    raise_all(faults)
    return expanded


def _expand(value: Any, place: _Place, faults: Faults) -> Any:
    """As `expand`; what cannot be expanded stays, and its fault is collected."""
    if isinstance(value, str):

        def expanded(match: re.Match[str]) -> str:
            with faults.collected():
                return place.value(match.group(1))
            return match.group(0)

        return _VARIABLE.sub(expanded, value)
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {name: _expand(inner, replace(place, key=f"{place.key}.{name}"), faults) for name, inner in items}
    if isinstance(value, list | tuple):
        return [_expand(inner, place, faults) for inner in cast("list[Any]", value)]
    return value


@dataclass(frozen=True, slots=True)
class _Place:
    file: str | Path | None
    key: str | None
    keep: Collection[str]
    editor: Editor | None
    parameters: Mapping[str, str] | None

    def value(self, text: str) -> str:
        if self.parameters is not None:
            return self._parameter(text, self.parameters)
        name, has_default, default = text.removeprefix("env:").partition(":-")
        if name == "lease.dir" or name in self.keep:
            return f"${{{text}}}"
        if name == "python":
            return sys.executable
        if name == "here" and self.file is not None:
            return str(Path(self.file).resolve().parent)
        if self.editor is not None and (found := self.editor.known(text)) is not None:
            return found
        if self.editor is not None and text.startswith("input:"):
            return self._input(text.removeprefix("input:"), self.editor)
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            problem = f"${{{text}}} is not a known variable"
            raise self._error(problem, "use ${NAME} for an environment variable or ${NAME:-default}")
        found = os.environ.get(name)
        if has_default and not found:
            return default
        if found is None:
            remedy = f"set {name}, or write ${{{name}:-default}}"
            raise self._error(f"environment variable {name} is not set", remedy)
        return found

    def _parameter(self, text: str, values: Mapping[str, str]) -> str:
        section, _, name = text.partition(".")
        if section != "parameters":
            return f"${{{text}}}"
        if name not in values:
            raise self._error(f"${{{text}}} is not declared", "declare it under parameters, with default and choices")
        return values[name]

    def _input(self, asked: str, editor: Editor) -> str:
        """The value of an editor's input: from the environment, else the input's default."""
        name = re.sub(r"\W", "_", asked).upper()
        found = os.environ.get(name, editor.inputs.get(asked, {}).get("default"))
        if found is None:
            # The input's description is not quoted, since it may hold a secret.
            problem = f"the editor would prompt for ${{input:{asked}}}, and there is no prompt here"
            raise self._error(problem, f"set the environment variable {name}")
        return str(found)

    def _error(self, problem: str, remedy: str) -> ConfigError:
        return ConfigError(problem, file=self.file, key=self.key, remedy=remedy)


def child_env(entry: Mapping[str, str]) -> dict[str, str]:
    """The environment of a server process: the allow-list (see `INHERITED_ENV`) and what its entry names."""
    inherited = {
        name: os.environ[name]  # by name: each value is decoded when it is read
        for name in os.environ
        if name.upper() in INHERITED_ENV or name.upper().startswith("LC_")
    }
    return inherited | dict(entry)
