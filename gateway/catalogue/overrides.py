"""Apply an entry's `tools`: select, rename and describe a server's tools, and hide the arguments that are fixed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import structlog

from mcp_rollout.gateway.config.models import ServerConfig
from mcp_rollout.gateway.config.tool_selection import ToolOverride, fill, is_glob, matches
from mcp_rollout.gateway.errors import ConfigError, Faults, raise_all
from mcp_rollout.gateway.schemas.check import check_value
from mcp_rollout.gateway.schemas.subschemas import needed_definitions
from mcp_rollout.gateway.types import Role, ToolDefinition

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
                key=f"servers.{server}.{key}",
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


_DEFINITIONS = ("$defs", "definitions")
_REFERENCE_TARGETS = ("$schema", "$id", *_DEFINITIONS, "properties")
"""Root keywords that an argument's own schema may refer to."""
_CONDITIONS = frozenset(
    "allOf anyOf oneOf not if then else dependentRequired dependentSchemas dependencies propertyNames minProperties "
    "maxProperties enum const $ref $dynamicRef $recursiveRef".split()
)
"""Root keywords whose outcome may depend on which arguments are present. Evaluating them for known values would need a
partial evaluator of JSON Schema; a schema with one of them is refused instead."""


class CannotHide(Exception):
    """Raised for a schema that relates its arguments to each other; the message names the keyword."""


def accepts_argument(schema: Mapping[str, Any], name: str, value: Any) -> bool:
    """Whether the argument `name` may have this value by its own schema, whatever the other arguments are."""
    alone = {keyword: schema[keyword] for keyword in _REFERENCE_TARGETS if keyword in schema}
    return not check_value(alone, {name: value}, subject=f"fixed argument {name}")


def without(schema: Mapping[str, Any], fixed: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of an input schema without the arguments in `fixed` and without definitions that only they refer to.

    Raises:
        CannotHide: the root has a keyword that relates arguments to each other.
    """
    if conditions := sorted(_CONDITIONS & schema.keys()):
        raise CannotHide(f"the schema has {conditions[0]!r} at its root, which may depend on it")
    left: dict[str, Any] = dict(schema)
    properties = cast("Mapping[str, Any]", schema.get("properties") or {})
    left["properties"] = {name: own for name, own in properties.items() if name not in fixed}
    if isinstance(required := schema.get("required"), list):
        left["required"] = [name for name in cast("list[Any]", required) if name not in fixed]
        if not left["required"]:
            del left["required"]
    if "default" in schema:
        left["default"] = _without_members(schema["default"], fixed)
    if isinstance(examples := schema.get("examples"), list):
        left["examples"] = [_without_members(example, fixed) for example in cast("list[Any]", examples)]
    for keyword in _DEFINITIONS:
        if isinstance(definitions := left.pop(keyword, None), Mapping):
            kept = needed_definitions(left, keyword, cast("Mapping[str, Any]", definitions))
            if kept:
                left[keyword] = kept
    return left


def _without_members(value: Any, names: Mapping[str, Any]) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {name: inner for name, inner in cast("Mapping[str, Any]", value).items() if name not in names}
