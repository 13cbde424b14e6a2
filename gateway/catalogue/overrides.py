"""Apply an entry's `tools`: select, rename and describe a server's tools, and hide the arguments that are fixed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import structlog

from gateway.config.models import ServerConfig
from gateway.config.tool_selection import ToolOverride, fill, is_glob, matches
from gateway.errors import ConfigError, Faults, raise_all
from gateway.schemas.fixed import CannotHide, accepts_argument, without
from gateway.types import Role, ToolDefinition

log = structlog.get_logger(__name__)


def select_tools(server: str, config: ServerConfig, tools: Sequence[ToolDefinition]) -> tuple[ToolDefinition, ...]:
    """Apply an entry's `tools` and check its `roles`; the order is the server's.

    Raises:
        ConfigError: a name or glob matches no tool of the server; a fixed argument is unknown to its tool, does not
            fit its schema or cannot be hidden; or two tools have the same role. `ConfigErrors` for several.
    """
    names = {tool.name for tool in tools}
    raise_all([*_wrong_patterns(server, config, names), *_wrong_roles(server, tools)])
    shown = [tool for tool in tools if tool.role is not None or config.tools.shows(tool.name)]
    faults = Faults()
    overridden: list[ToolDefinition] = []
    for tool in shown:
        with faults.collected():
            overridden.append(_overridden(server, config.tools.change, tool))
    raise_all(faults)
    raise_all(list(_fixed_nowhere(server, config.tools.change, overridden)))
    return tuple(overridden)


def _wrong_patterns(server: str, config: ServerConfig, names: Collection[str]) -> Iterator[ConfigError]:
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
                # Denying tools that a later version may add is legitimate.
                log.warning("config.deny_matches_nothing", server=server, pattern=pattern)
                continue
            what = "no tool that matches" if key != "roles" and is_glob(pattern) else "no tool"
            yield ConfigError(
                f"the server has {what} {pattern!r}",
                key=f"servers.{server}.{selection.key_of(key, pattern)}",
                remedy=f"its tools: {', '.join(sorted(names)) or 'none'}",
            )


def _wrong_roles(server: str, tools: Sequence[ToolDefinition]) -> Iterator[ConfigError]:
    counts: Counter[Role] = Counter(tool.role for tool in tools if tool.role is not None)
    for role, count in counts.items():
        if count > 1:
            yield ConfigError(
                f"the server has {count} tools with the role {role}",
                key=f"servers.{server}.roles",
                remedy=f"name the one to use: roles: {{{role}: TOOL}}",
            )


def _overridden(server: str, changes: Mapping[str, ToolOverride], tool: ToolDefinition) -> ToolDefinition:
    for pattern, change in changes.items():
        if not matches(pattern, tool.name):
            continue
        if change.name is not None:
            tool = replace(tool, exposed_name=change.name)
        if change.description is not None:
            tool = replace(tool, description=change.description)
        known = _properties(tool.sent_schema).keys()
        fixed = {name: value for name, value in change.fixed.items() if name in known or not is_glob(pattern)}
        if fixed:
            tool = _with_fixed(tool, fixed, key=f"servers.{server}.tools.change.{pattern}.fixed")
    return tool


def _with_fixed(tool: ToolDefinition, fixed: Mapping[str, Any], *, key: str) -> ToolDefinition:
    full = tool.sent_schema
    known = _properties(full)
    faults: list[ConfigError] = []
    for name, value in fixed.items():
        if name not in known:
            remedy = f"its arguments: {', '.join(known) or 'none'}"
            faults.append(ConfigError(f"{tool.name} has no argument {name!r}", key=key, remedy=remedy))
        elif not accepts_argument(full, name, fill(value, trajectory="trajectory", seed=0)):
            # The value itself may be a secret.
            remedy = "give a value that fits"
            faults.append(ConfigError(f"{tool.name}'s schema refuses the value of {name!r}", key=key, remedy=remedy))
    raise_all(faults)
    fixed = {**tool.fixed, **fixed}
    try:
        shown = without(full, fixed)
    except CannotHide as problem:
        raise ConfigError(
            f"{tool.name}'s argument {next(iter(fixed))!r} cannot be hidden: {problem}",
            key=key,
            remedy="leave it to the policy, or hide the tool with tools.deny",
        ) from None
    return replace(tool, input_schema=shown, full_schema=full, fixed=fixed)


def _fixed_nowhere(
    server: str, changes: Mapping[str, ToolOverride], tools: Collection[ToolDefinition]
) -> Iterator[ConfigError]:
    for pattern, change in changes.items():
        for name in change.fixed:
            if not any(name in tool.fixed for tool in tools if matches(pattern, tool.name)):
                yield ConfigError(
                    f"no tool that it matches has an argument {name!r}",
                    key=f"servers.{server}.tools.change.{pattern}.fixed",
                    remedy="look at their schemas with `mcp-rollout tools --json`",
                )


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = schema.get("properties")
    return cast("Mapping[str, Any]", properties) if isinstance(properties, Mapping) else {}
