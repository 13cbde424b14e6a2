"""The lock: the tool definitions that the policy sees, in a file that verl loads (`multi_turn.tool_config_path`).

Each entry has the full definition under `config` and, under `tool_schema`, the part of it that verl's own schema class
accepts. verl reads the file with OmegaConf and resolves it, so `${...}` in a description is written escaped.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml

from mcp_rollout.gateway.catalogue.hidden_text import Budget, plain
from mcp_rollout.gateway.catalogue.names import Catalogue, policy_tools
from mcp_rollout.gateway.config.mapping_file import read_mapping
from mcp_rollout.gateway.errors import ConfigError, Faults, not_written, raise_all
from mcp_rollout.gateway.private_files import replacing
from mcp_rollout.gateway.schemas.projection import verl_parameters
from mcp_rollout.gateway.types import ToolDefinition

CLASS_NAME = "mcp_rollout.rollout.verl.tool.MCPTool"
FORMAT = 2
"""Version of an entry's `config`. Version 1 did not pin annotations, output and sent schemas."""
_MOST_COMPARED = 500
"""Lines of a definition that are compared to show a difference, which takes time quadratic in them."""
_REMEDY = "write it again with `mcp-rollout tool-config`"


@dataclass(frozen=True, kw_only=True, slots=True)
class LockEntry:
    """One tool as it was when the lock was written."""

    definition: ToolDefinition
    environment: str | None
    source: str
    """The file that named the server."""

    @property
    def hash(self) -> str:
        return self.definition.digest


def lock_entries(catalogue: Catalogue, *, environment: str | None, source: str) -> list[dict[str, Any]]:
    """The entries of the lock, one for each policy tool, in the catalogue's order."""
    return [
        {
            "class_name": CLASS_NAME,
            "config": {
                "type": "native",
                "format": FORMAT,
                "environment": environment,
                "source": source,
                "server": tool.server,
                "tool": tool.name,
                "hash": tool.digest,
                **tool.pinned,
            },
            "tool_schema": {
                "type": "function",
                "function": {
                    "name": tool.exposed_name,
                    "description": tool.description,
                    "parameters": verl_parameters(tool.input_schema),
                },
            },
        }
        for tool in policy_tools(catalogue)
    ]


def write_lock(path: str | Path, entries: Sequence[Mapping[str, Any]]) -> None:
    """Write the lock atomically, and create its directory.

    Every value survives both readers: verl's, which resolves `${...}`, and `read_lock`.

    Raises:
        ConfigError: the file cannot be written.
    """
    data = {"tools": _map_strings(list(entries), escape)}
    text = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**9)
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            partial.write_text(text, encoding="utf-8")
    except OSError as error:
        raise not_written(error, path) from error


def read_lock(path: str | Path) -> list[LockEntry]:
    """Our entries of a tool config file, which may also list tools of other classes.

    Raises:
        ConfigError: the file is not a tool config, or an entry was changed after it was written;
            `ConfigErrors` for several.
    """
    tools = read_mapping(path).get("tools")
    if not isinstance(tools, list):
        raise ConfigError("no list of tools", file=path, key="tools", remedy=_REMEDY)
    entries: list[LockEntry] = []
    faults = Faults()
    for index, raw in enumerate(cast("list[Any]", tools)):
        if isinstance(raw, Mapping) and cast("Mapping[str, Any]", raw).get("class_name") == CLASS_NAME:
            with faults.collected():
                entries.append(_read_entry(_map_strings(raw, unescape), file=path, key=f"tools.{index}"))
    raise_all(faults)
    return entries


def parse_entries(entries: Sequence[Mapping[str, Any]]) -> list[LockEntry]:
    """Parse the output of `lock_entries`, as `read_lock` would read it back."""
    return [lock_entry(entry["config"], entry["tool_schema"]["function"]["name"]) for entry in entries]


def _read_entry(raw: Mapping[str, Any], *, file: str | Path, key: str) -> LockEntry:
    try:
        return lock_entry(raw["config"], raw["tool_schema"]["function"]["name"])
    except (KeyError, TypeError) as error:
        raise ConfigError(f"not an entry of a lock: {error}", file=file, key=key, remedy=_REMEDY) from None
    except ConfigError as error:
        raise ConfigError(error.problem, file=file, key=f"{key}.config", remedy=error.remedy) from None


def lock_entry(config: Mapping[str, Any], exposed_name: str) -> LockEntry:
    """One entry from its `config`, as verl hands it to the tool class.

    Raises:
        ConfigError: a key is missing, the definition does not match its own hash, or it was written by another version.
    """
    if "hash" in config and (found := config.get("format", 1)) != FORMAT:
        problem = f"the lock has format {found}, and this version reads {FORMAT}, which pins other things of a tool"
        raise ConfigError(problem, key=exposed_name, remedy=_REMEDY)
    try:
        definition = ToolDefinition(
            server=config["server"],
            name=config["tool"],
            exposed_name=exposed_name,
            description=config["description"],
            input_schema=config["input_schema"],
            full_schema=config["sent_schema"],
            output_schema=config["output_schema"],
            read_only=config["read_only"],
            idempotent=config["idempotent"],
        )
        entry = LockEntry(definition=definition, environment=config["environment"], source=config["source"])
        recorded = config["hash"]
    except KeyError as error:
        raise ConfigError(f"not an entry of a lock: no {error}", key=exposed_name, remedy=_REMEDY) from None
    if recorded != entry.hash:
        raise ConfigError(f"{exposed_name!r} does not match its own hash: the file was edited", remedy=_REMEDY)
    return entry


def check_lock(entries: Sequence[LockEntry], catalogue: Catalogue) -> list[str]:
    """Compare the lock with live servers: a readable difference for each changed or missing tool.

    A tool that only the servers have makes no difference: the policy never sees it.
    """
    live = {(tool.server, tool.name): tool for tool in policy_tools(catalogue)}
    differences: list[str] = []
    for entry in entries:
        locked = entry.definition
        found = live.get((locked.server, locked.name))
        if found is None:
            differences.append(f"{locked.server}/{locked.name}: in the lock, but the server does not list it any more")
        elif (found.digest, found.exposed_name) != (locked.digest, locked.exposed_name):
            differences.append(difference(locked, found, was="lock", now="server"))
    return differences


def compare_locks(before: Sequence[LockEntry], after: Sequence[LockEntry]) -> list[str]:
    """Compare two locks: a readable difference for each tool that `after` changes, adds or removes."""
    old, new = (
        {
            (each.environment or each.source, each.definition.server, each.definition.name): each.definition
            for each in entries
        }
        for entries in (before, after)
    )
    differences = [f"{_named(place)}: would be lost" for place in old if place not in new]
    for place, definition in new.items():
        locked = old.get(place)
        if locked is None:
            differences.append(f"{_named(place)}: is new")
        elif (locked.digest, locked.exposed_name) != (definition.digest, definition.exposed_name):
            differences.append(difference(locked, definition, was="lock", now="server"))
    return differences


def _named(place: tuple[str, str, str]) -> str:
    source, server, tool = place
    return f"{server}/{tool} of {source}"


def difference(before: ToolDefinition, after: ToolDefinition, *, was: str, now: str) -> str:
    """A unified diff of the pinned properties; `was` and `now` name the origin of each side.

    Invisible characters are spelled out, so that a change of nothing else is visible too.
    """
    old, new = (_pinned_lines({"name": tool.exposed_name, **tool.pinned}) for tool in (before, after))
    heading = f"{before.server}/{before.name} has changed:"
    if max(len(old), len(new)) > _MOST_COMPARED:
        return f"{heading} its definition has {len(new)} lines ({was}: {len(old)}), too many to show the difference"
    budget = Budget()
    lines = difflib.unified_diff(old, new, was, now, n=1, lineterm="")
    return "\n".join([heading, *(plain(line, budget) for line in lines)])


def is_changed(before: ToolDefinition, after: ToolDefinition) -> bool:
    """Whether a tool is not the one that was published."""
    # Most connections share their definitions, and comparing digests costs a thousand times as much.
    return after is not before and (after.digest != before.digest or after.role is not before.role)


def _pinned_lines(value: Any) -> list[str]:
    # Not `splitlines`, which also splits at characters that JSON leaves in its strings.
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False).split("\n")


def escape(text: str) -> str:
    """Escape a string so that OmegaConf resolves it to `text`. Only strings that contain `${` are parsed at all."""
    return re.sub(r"(\\*)\$\{", lambda match: match.group(1) * 2 + r"\${", text)


def unescape(text: str) -> str:
    """The inverse of `escape`."""
    return re.sub(r"(\\*)\\\$\{", lambda match: match.group(1)[: len(match.group(1)) // 2] + "${", text)


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """`value` with `change` applied to every string in it except keys, which OmegaConf does not resolve."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value).items()
        return {name: _map_strings(inner, change) for name, inner in items}
    if isinstance(value, list | tuple):
        return [_map_strings(inner, change) for inner in cast("list[Any]", value)]
    return value


class _Dumper(yaml.SafeDumper):
    """Quotes every string that is not a plain word: OmegaConf reads more strings as numbers than PyYAML expects."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_NOT_STRINGS = frozenset("y n yes no on off true false null none nan inf".split())


def _represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain = _PLAIN.fullmatch(text) and text.lower() not in _NOT_STRINGS
    style = None if plain else '"'
    return cast("Any", dumper).represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent)
