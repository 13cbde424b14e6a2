"""Read a file of servers: `mcpServers` (Claude Desktop, Cursor), `servers` or `mcp.servers` (VS Code), or our YAML.

Every problem is a `ConfigError` that names the file, the key as the file spells it, and the remedy; values that may
be secret (`env`, `headers`, `args`, `url`) never appear in it. One invalid entry does not hide another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, cast

import structlog

from mcp_rollout.gateway.config.client_formats import translated
from mcp_rollout.gateway.config.mapping_file import read_mapping
from mcp_rollout.gateway.config.models import GatewayConfig, LeaseDirConfig, ServerConfig
from mcp_rollout.gateway.config.pydantic_errors import validate
from mcp_rollout.gateway.config.tool_selection import TRAJECTORY_VARIABLES
from mcp_rollout.gateway.config.variables import Editor, expand
from mcp_rollout.gateway.errors import ConfigError, Faults, faults_of, one_error, raise_all

log = structlog.get_logger(__name__)
Configuration = TypeVar("Configuration", bound=GatewayConfig)

_PLACEHOLDER = ServerConfig(command="invalid")
_EXPECTED = 'expected {"mcpServers": {NAME: {"command": ...}}}'


@dataclass(frozen=True, kw_only=True, slots=True)
class Entries:
    """The servers of a file: the valid entries, and the errors of the others."""

    servers: dict[str, ServerConfig]
    faults: dict[str, ConfigError]
    """By name; disjoint from `servers`."""
    disabled: tuple[str, ...]
    key: str
    """The file's key for its servers: `mcpServers`, `servers` or `mcp.servers`."""

    @property
    def with_placeholders(self) -> dict[str, ServerConfig]:
        """An entry for each name, so that what refers to an invalid one is not at fault as well."""
        return {**dict.fromkeys(self.faults, _PLACEHOLDER), **self.servers}


@dataclass(frozen=True, kw_only=True, slots=True)
class ServersFile:
    """The content of a file of servers."""

    config: GatewayConfig
    """With the valid entries."""
    entries: Entries


def load_servers(path: str | Path) -> GatewayConfig:
    """Read a file of servers.

    Raises:
        ConfigError: the file is missing, unreadable or invalid; `ConfigErrors` for several problems.
    """
    found = read_servers(path)
    raise_all(list(found.entries.faults.values()))
    return found.config


def read_servers(path: str | Path) -> ServersFile:
    """Read a file of servers; invalid entries are reported in the result and do not affect the others.

    Raises:
        ConfigError: the file is missing or unreadable, has no servers, or is invalid outside its entries.
    """
    data = read_mapping(path)
    raw, key, inputs, data = _servers_in(data, path)
    entries = read_entries(raw, file=path, key=key, editor=Editor.of(path, inputs))
    if not entries.servers and not entries.faults:
        problem = "every server is disabled" if entries.disabled else "no servers here"
        raise ConfigError(problem, file=path, key=key, remedy="enable one" if entries.disabled else _EXPECTED)
    try:
        config = validate_around(GatewayConfig, data, entries, file=path)
    except ConfigError as error:
        raise one_error([*entries.faults.values(), error]) from None
    if config.elicitation is not None and config.elicitation.server in entries.faults:
        raise one_error(list(entries.faults.values()))
    return ServersFile(config=config.model_copy(update={"servers": entries.servers}), entries=entries)


def validate_around(
    model: type[Configuration], data: Mapping[str, Any], entries: Entries, *, file: str | Path
) -> Configuration:
    """The configuration around a file's entries, in which invalid ones have placeholders.

    Raises:
        ConfigError: it is invalid; `ConfigErrors` for several faults.
    """
    faults = Faults()
    data = dict(data)
    if "sampling" in data:
        with faults.collected():
            data["sampling"] = expand(data["sampling"], file=file, key="sampling")
    try:
        config = validate(model, {**data, "servers": entries.with_placeholders}, file=file)
        check_template(config.lease_dir, file=file)
    except ConfigError as error:
        raise one_error([*faults, *(each for each in faults_of(error) if not _within(each, faults))]) from None
    raise_all(faults)
    return config


def _servers_in(data: dict[str, Any], path: str | Path) -> tuple[object, str, Any, dict[str, Any]]:
    """The mapping of servers, its key, an editor's `inputs`, and the file's other keys that this program uses."""
    if "mcpServers" in data and "servers" in data:
        remedy = "move all of them under one"
        raise ConfigError("both mcpServers and servers are here", file=path, key="servers", remedy=remedy)
    if "mcpServers" in data:
        # A desktop client's whole settings file is accepted.
        ours = {name: value for name, value in data.items() if name in GatewayConfig.model_fields}
        return data["mcpServers"], "mcpServers", data.get("inputs"), ours
    if "servers" in data:
        # In our own file an unknown key is a mistake.
        ours = {name: value for name, value in data.items() if name not in ("servers", "inputs", "$schema")}
        return data["servers"], "servers", data.get("inputs"), ours
    section: Any = data.get("mcp")
    if isinstance(section, Mapping) and "servers" in section:
        settings = cast("Mapping[str, Any]", section)
        return settings["servers"], "mcp.servers", settings.get("inputs"), {}
    raise no_servers(data, path, key="mcpServers", expected=_EXPECTED)


def no_servers(data: Mapping[str, Any], path: str | Path, *, key: str, expected: str) -> ConfigError:
    """The error for a file without `key`; it suggests the key that was probably meant."""
    for right in ("mcpServers", "servers"):
        if meant := get_close_matches(right, data, n=1, cutoff=0.8):
            return ConfigError("no servers here", file=path, key=meant[0], remedy=f"did you mean {right!r}?")
    return ConfigError("no servers here", file=path, key=key, remedy=expected)


def read_entries(
    raw: object, *, file: str | Path | None = None, key: str = "servers", editor: Editor | None = None
) -> Entries:
    """The entries of a mapping of servers, variables expanded; errors of entries are in the result.

    Raises:
        ConfigError: `raw` is not a mapping.
    """
    if not isinstance(raw, Mapping):
        raise ConfigError(
            "not a mapping of names to servers", file=file, key=key, remedy="expected NAME: {command: ...}"
        )
    if editor is None and file is not None:
        editor = Editor.of(file)
    servers: dict[str, ServerConfig] = {}
    faults: dict[str, ConfigError] = {}
    disabled: list[str] = []
    for given, entry in cast("Mapping[Any, Any]", raw).items():
        name = str(given)
        try:
            found = _entry(name, entry, file, f"{key}.{name}", editor)
        except ConfigError as error:
            faults[name] = error
            continue
        if found is None:
            disabled.append(name)
        else:
            servers[name] = found
    return Entries(servers=servers, faults=faults, disabled=tuple(disabled), key=key)


def _entry(name: str, entry: Any, file: str | Path | None, at: str, editor: Editor | None) -> ServerConfig | None:
    """One entry; None if it is disabled, even if it is invalid otherwise."""
    if not name.strip():
        raise ConfigError("a server without a name", file=file, key=at, remedy="give it one")
    if not isinstance(entry, Mapping):
        raise ConfigError("not a mapping", file=file, key=at, remedy="expected {command: ...} or {url: ...}")
    fields = dict(cast("Mapping[str, Any]", entry))
    for switch, off in (("disabled", True), ("enabled", False)):
        if switch in fields:
            value = fields.pop(switch)
            if not isinstance(value, bool):
                raise ConfigError("must be true or false", file=file, key=f"{at}.{switch}", remedy="correct the value")
            if value is off:
                return None
    fields = translated(fields, file=file, key=at, editor=editor)
    faults = Faults()
    for field in ("command", "args", "env", "cwd", "url", "headers"):
        if field in fields:
            with faults.collected():
                fields[field] = expand(fields[field], file=file, key=f"{at}.{field}", editor=editor)
    with faults.collected():
        fields = _expand_fixed(fields, file=file, key=f"{at}.tools.change")
    try:
        config = validate(ServerConfig, fields, file=file, key=at)
    except ConfigError as error:
        # A value with a variable that is not set is at fault once only.
        raise one_error([*faults, *(each for each in faults_of(error) if not _within(each, faults))]) from None
    raise_all(faults)
    return config


def _within(fault: ConfigError, earlier: Sequence[ConfigError]) -> bool:
    """Whether a fault may follow from an earlier one: it is about the same field, or about the entry as a whole."""
    return any(f"{each.key}.".startswith(f"{fault.key}.") for each in earlier)


def check_template(lease_dir: LeaseDirConfig, *, file: str | Path | None) -> None:
    """Raise `ConfigError` if the template of lease directories does not exist, even if no server uses it yet."""
    if lease_dir.template is not None and not Path(lease_dir.template).is_dir():
        problem = f"no such directory: {lease_dir.template}"
        raise ConfigError(problem, file=file, key="lease_dir.template", remedy="make it, or correct the path")


def _expand_fixed(fields: dict[str, Any], *, file: str | Path | None, key: str) -> dict[str, Any]:
    """The entry with the variables in its `tools.change.*.fixed` expanded; other types are left to validation."""
    tools: Any = fields.get("tools")
    changes: Any = cast("Mapping[str, Any]", tools).get("change") if isinstance(tools, Mapping) else None
    if not isinstance(changes, Mapping):
        return fields
    expanded: dict[str, Any] = {}
    for name, change in cast("Mapping[str, Any]", changes).items():
        expanded[name] = change
        if isinstance(change, Mapping) and "fixed" in change:
            fixed = expand(change["fixed"], file=file, key=f"{key}.{name}.fixed", keep=TRAJECTORY_VARIABLES)
            expanded[name] = {**cast("Mapping[str, Any]", change), "fixed": fixed}
    return {**fields, "tools": {**cast("Mapping[str, Any]", tools), "change": expanded}}
