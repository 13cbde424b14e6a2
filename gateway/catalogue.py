"""A server's tools as its entry wants them shown: chosen, renamed, with arguments filled in by the gateway left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import structlog

from gateway.config import ServerConfig
from gateway.errors import ConfigError
from gateway.schema import check_arguments
from gateway.selection import ToolChange, fill, is_glob, matches
from gateway.types import Role, ToolDefinition

log = structlog.get_logger(__name__)


def select_tools(server: str, config: ServerConfig, tools: Sequence[ToolDefinition]) -> tuple[ToolDefinition, ...]:
    """Apply an entry's `tools` and check its `roles`; the order is the server's.

    Raises:
        ConfigError: a name or glob matches no tool of the server, a fixed argument is none of its tool's or does not
            fit it, or two tools have the same role.
    """
    _check_patterns(server, config, {tool.name for tool in tools})
    _check_roles(server, tools)
    shown = [tool for tool in tools if tool.role is not None or config.tools.shows(tool.name)]
    changed = tuple(_changed(server, config.tools.change, tool) for tool in shown)
    _check_fixed_somewhere(server, config.tools.change, changed)
    return changed


def _check_patterns(server: str, config: ServerConfig, names: Collection[str]) -> None:
    selection = config.tools
    wanted: dict[str, Collection[str]] = {
        "tools": selection.allow or (),
        "tools.deny": selection.deny,
        "tools.change": selection.change,
        "roles": config.roles.values(),
    }
    for key, patterns in wanted.items():
        for pattern in patterns:
            if any(pattern == name if key == "roles" else matches(pattern, name) for name in names):
                continue
            if key == "tools.deny" and is_glob(pattern):
                # A guard against tools that may come one day is no mistake.
                log.warning("config.deny_matches_nothing", server=server, pattern=pattern)
                continue
            what = "no tool that matches" if key != "roles" and is_glob(pattern) else "no tool"
            raise ConfigError(
                f"the server has {what} {pattern!r}",
                key=f"servers.{server}.{key}",
                remedy=f"its tools: {', '.join(sorted(names)) or 'none'}",
            )


def _check_roles(server: str, tools: Sequence[ToolDefinition]) -> None:
    counts: Counter[Role] = Counter(tool.role for tool in tools if tool.role is not None)
    for role, count in counts.items():
        if count > 1:
            raise ConfigError(
                f"the server has {count} tools with the role {role}",
                key=f"servers.{server}.roles",
                remedy=f"name the one to use: roles: {{{role}: TOOL}}",
            )


def _changed(server: str, changes: Mapping[str, ToolChange], tool: ToolDefinition) -> ToolDefinition:
    for pattern, change in changes.items():
        if not matches(pattern, tool.name):
            continue
        if change.name is not None:
            tool = replace(tool, exposed_name=change.name)
        if change.description is not None:
            tool = replace(tool, description=change.description)
        known = _properties(tool.input_schema).keys() | tool.fixed.keys()
        fixed = {name: value for name, value in change.fixed.items() if name in known or not is_glob(pattern)}
        if fixed:
            tool = _with_fixed(tool, fixed, key=f"servers.{server}.tools.change.{pattern}.fixed")
    return tool


def _with_fixed(tool: ToolDefinition, fixed: Mapping[str, Any], *, key: str) -> ToolDefinition:
    known = _properties(tool.input_schema)
    for name, value in fixed.items():
        if name in tool.fixed:
            continue
        if name not in known:
            remedy = f"its arguments: {', '.join(known) or 'none'}"
            raise ConfigError(f"{tool.name} has no argument {name!r}", key=key, remedy=remedy)
        alone: dict[str, Any] = {**tool.input_schema, "properties": {name: known[name]}, "required": []}
        sample = {name: fill(value, trajectory="trajectory", seed=0)}
        if check_arguments(replace(tool, input_schema=alone), sample):
            # The value itself may be a secret.
            remedy = "give a value that fits"
            raise ConfigError(f"{tool.name}'s schema refuses the value of {name!r}", key=key, remedy=remedy)
    return replace(tool, input_schema=without(tool.input_schema, fixed), fixed={**tool.fixed, **fixed})


def _check_fixed_somewhere(server: str, changes: Mapping[str, ToolChange], tools: Collection[ToolDefinition]) -> None:
    for pattern, change in changes.items():
        for name in change.fixed:
            if not any(name in tool.fixed for tool in tools if matches(pattern, tool.name)):
                raise ConfigError(
                    f"no tool that it stands for has an argument {name!r}",
                    key=f"servers.{server}.tools.change.{pattern}.fixed",
                    remedy="look at their schemas with `mcp-rollout tools --json`",
                )


def without(schema: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """An input schema without some of its arguments, and without the definitions that only those needed."""
    left = {**schema, "properties": {name: kept for name, kept in _properties(schema).items() if name not in names}}
    if isinstance(required := schema.get("required"), list):
        left["required"] = [name for name in cast("list[Any]", required) if name not in names]
    for keyword in ("$defs", "definitions"):
        if isinstance(definitions := schema.get(keyword), Mapping):
            kept = _reachable(left, keyword, cast("Mapping[str, Any]", definitions))
            left.pop(keyword)
            if kept:
                left[keyword] = kept
    return left


def _reachable(schema: Mapping[str, Any], keyword: str, definitions: Mapping[str, Any]) -> dict[str, Any]:
    prefix = f"#/{keyword}/"
    todo = list(_references({name: part for name, part in schema.items() if name != keyword}))
    found: set[str] = set()
    while todo:
        reference = todo.pop()
        name = reference.removeprefix(prefix).split("/")[0]
        if not reference.startswith(prefix):
            return dict(definitions)  # an anchor, or the root itself: what it needs is not ours to tell
        if name in definitions and name not in found:
            found.add(name)
            todo += _references(definitions[name])
    return {name: part for name, part in definitions.items() if name in found}


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        for name, inner in cast("Mapping[str, Any]", schema).items():
            if name in ("$ref", "$dynamicRef") and isinstance(inner, str):
                yield inner
            yield from _references(inner)
    elif isinstance(schema, list):
        for inner in cast("list[Any]", schema):
            yield from _references(inner)


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = schema.get("properties")
    return cast("Mapping[str, Any]", properties) if isinstance(properties, Mapping) else {}
