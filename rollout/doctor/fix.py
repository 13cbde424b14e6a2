"""`doctor --fix`: a copy of the servers' file with scopes, lease directories and timeouts as the examination found."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import yaml

from mcp_rollout.gateway.config.mapping_file import JSON_SUFFIXES, read_mapping
from mcp_rollout.gateway.errors import ConfigError, not_written
from mcp_rollout.rollout.doctor.report import ServerReport

_SPARE = 4
"""How many times the slowest start and call fit into the timeouts."""
_START_S, _CALL_S = 30, 60
"""The defaults, which are written only if they are too short."""


def write_fixed(
    source: str | Path, target: Path, key: str, reports: Sequence[ServerReport], *, disable_unusable: bool = False
) -> list[str]:
    """Write the copy; return one line for each change.

    Args:
        key: The key of the servers in the file: `mcpServers`, `servers` or `mcp.servers`.
        disable_unusable: Whether servers that do not start or have no tools are disabled in the copy.

    Raises:
        ConfigError: the copy would replace a file that exists, or cannot be written.
    """
    if target.exists():
        raise ConfigError("exists already", file=target, key="--fix", remedy="name a new file")
    data = read_mapping(Path(source))
    servers: Any = data
    for part in key.split("."):
        servers = servers[part]
    reports = [report for report in reports if report.server in servers]
    changes = [line for report in reports for line in _fix(servers, report)]
    for report in reports if disable_unusable else ():
        if not report.tools:
            servers[report.server]["disabled"] = True
            changes.append(f"{report.server}.disabled: true, since it does not start or has no tools")
    found: list[Mapping[str, Any]] = [report.advice.changes or {} for report in reports if report.advice is not None]
    if needed := {name: place for each in found for name, place in each.get("data", {}).items()}:
        changes += _add_template(data, needed, target, key)
    text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    if target.suffix not in JSON_SUFFIXES:
        text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    try:
        target.write_text(text)
    except OSError as error:
        raise not_written(error, target, "--fix") from error
    return changes


def _add_template(data: dict[str, Any], needed: Mapping[str, str], target: Path, key: str) -> list[str]:
    """Copy what the servers' places hold to a template of lease directories beside the copy, and name it there."""
    names = ", ".join(needed)
    if "lease_dir" in data or key == "mcp.servers":
        return [f"not changed: lease_dir.template, in which the servers need {names}"]
    template = target.absolute().with_name(f"{target.stem}.lease_dir")
    try:
        for name, place in needed.items():
            (template / name).parent.mkdir(parents=True, exist_ok=True)
            if Path(place).is_dir():
                shutil.copytree(place, template / name, symlinks=True)
            else:
                shutil.copy2(place, template / name)
    except (OSError, shutil.Error) as error:
        raise ConfigError(
            f"cannot be written: {error}", file=template, key="--fix", remedy="choose another place"
        ) from error
    data["lease_dir"] = {"template": str(template)}
    return [f"lease_dir.template: {template}, with a copy of {names}"]


def _fix(servers: dict[str, Any], report: ServerReport) -> list[str]:
    """Change one entry in place; an entry whose examination found nothing is left as it is."""
    entry = cast("dict[str, Any]", servers[report.server])
    changes: list[str] = []

    def put(holder: Any, name: Any, value: Any, shown: str) -> None:
        if (holder[name] if isinstance(holder, list) else holder.get(name)) != value:
            holder[name] = value
            changes.append(f"{report.server}.{shown}: {value}")

    if report.advice is not None and report.advice.scope is not None:
        put(entry, "scope", str(report.advice.scope), "scope")
        needed: Mapping[str, Any] = report.advice.changes or {}
        for index, text in needed.get("args", {}).items():
            put(entry["args"], index, text, f"args[{index}]")
        for name, text in needed.get("env", {}).items():
            put(entry.setdefault("env", {}), name, text, f"env.{name}")
        if needed.get("cwd"):
            put(entry, "cwd", needed["cwd"], "cwd")
    for name, latency, default in (
        ("start_timeout_s", report.start, _START_S),
        ("call_timeout_s", report.call, _CALL_S),
    ):
        wanted = 0 if latency is None else math.ceil(_SPARE * latency.p95_s)
        if wanted > entry.get(name, default):
            put(entry, name, wanted, name)
    return changes
