"""Translate server entries of Claude Desktop, Cursor, VS Code and other clients into this program's keys.

A key is translated, or ignored if it concerns only people (approval, display). One that has no counterpart is a warning
if the server works without it, and an error if the server would be another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import structlog

from mcp_rollout.gateway.config.variables import Editor, expand
from mcp_rollout.gateway.errors import ConfigError

log = structlog.get_logger(__name__)

SILENT = frozenset(
    "autoApprove alwaysAllow autoApproveTools trust description dev icon gallery note name version watchPaths".split()
)
"""Keys about approval and display, which do not matter in a rollout."""
_WARNED = {
    "timeout": "its unit differs between programs: set call_timeout_s, in seconds",
    "initTimeout": "set start_timeout_s, in seconds",
    "oauth": "there is no sign-in: write a token into headers",
}
"""Keys that other clients use and this program ignores, with what to use instead."""
_RENAMED = {"serverUrl": "url", "httpUrl": "url", "transportType": "type"}
_LISTS = {"disabledTools": "deny", "excludeTools": "deny", "includeTools": "allow", "enabledTools": "allow"}


def translated(entry: Mapping[str, Any], *, file: str | Path | None, key: str, editor: Editor | None) -> dict[str, Any]:
    """The entry with the keys of other clients replaced by this program's.

    Raises:
        ConfigError: an `envFile` cannot be read, a list of tools is not a list, `command` is a list, or two keys have
            the same meaning.
    """
    fields = {name: value for name, value in entry.items() if name not in SILENT}
    if ignored := sorted(SILENT & entry.keys()):
        log.info("config.keys_ignored", file=str(file), key=key, ignored=ignored)
    for name in sorted(_WARNED.keys() & fields.keys()):
        del fields[name]
        log.warning("config.key_ignored", file=str(file), key=f"{key}.{name}", remedy=_WARNED[name])
    for theirs, ours in _RENAMED.items():
        if theirs in fields:
            if ours in fields:
                remedy = f"remove {theirs}"
                raise ConfigError(f"has the same meaning as {ours}", file=file, key=f"{key}.{theirs}", remedy=remedy)
            fields[ours] = fields.pop(theirs)
    if isinstance(fields.get("command"), list):
        remedy = "write the program alone as command, and the rest as args"
        raise ConfigError("is a list", file=file, key=f"{key}.command", remedy=remedy)
    for theirs, ours in _LISTS.items():
        if theirs in fields:
            _add_tools(fields, ours, fields.pop(theirs), _At(file, f"{key}.{theirs}"))
    if "envFile" in fields:
        of_file = _env_file(fields.pop("envFile"), file=file, key=f"{key}.envFile", editor=editor)
        own: Any = fields.get("env") or {}
        fields["env"] = {**of_file, **cast("dict[str, Any]", own)} if isinstance(own, Mapping) else own
    return fields


class _At:
    """Makes `ConfigError`s for one place of a file."""

    def __init__(self, file: str | Path | None, key: str) -> None:
        self._file, self._key = file, key

    def __call__(self, problem: str, remedy: str) -> ConfigError:
        return ConfigError(problem, file=self._file, key=self._key, remedy=remedy)


def _add_tools(fields: dict[str, Any], ours: str, named: Any, error: _At) -> None:
    """Merge another client's list of tools into the entry's `tools`."""
    names = cast("list[Any]", named) if isinstance(named, list) else None
    if names is None or not all(isinstance(name, str) for name in names):
        raise error("must be a list of strings", 'write ["...", "..."]')
    tools: Any = fields.get("tools") or {}
    if isinstance(tools, list):
        tools = {"allow": cast("list[Any]", tools)}
    if not isinstance(tools, Mapping):
        return  # validation reports it
    tools = dict(cast("Mapping[str, Any]", tools))
    if ours == "allow":
        if "allow" in tools:
            raise error("has the same meaning as tools", "remove one of them")
        tools["allow"] = names
    else:
        tools["deny"] = [*tools.get("deny", ()), *names]
    fields["tools"] = tools


def _env_file(named: Any, *, file: str | Path | None, key: str, editor: Editor | None) -> dict[str, str]:
    """The variables of a `.env` file: lines of NAME=VALUE, comments, `export`, and values in quotes."""
    error = _At(file, key)
    if not isinstance(named, str):
        raise error("must be the path of a file of NAME=VALUE lines", "correct the value")
    path = Path(expand(named, file=file, key=key, editor=editor)).expanduser()
    path = path if editor is None else editor.folder / path
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "not UTF-8 text"
        raise error(f"{path} cannot be read: {reason}", "correct the path, or name the variables in env") from None
    variables: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        text = line.strip().removeprefix("export ").strip()
        if not text or text.startswith("#"):
            continue
        name, found, value = text.partition("=")
        if not found or not name.strip().isidentifier():
            raise error(f"{path}, line {number} is not NAME=VALUE", "correct the line")
        variables[name.strip()] = _unquoted(value.strip())
    return variables


def _unquoted(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
        return value[1:-1]
    return value.partition(" #")[0].rstrip()
