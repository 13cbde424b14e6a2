"""Give tools the names that the policy sees: their own, or `server__tool` if servers share one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.gateway.types import Audience, ToolDefinition

Catalogue = Mapping[str, Sequence[ToolDefinition]]
"""All tools by server."""


def policy_tools(catalogue: Catalogue) -> list[ToolDefinition]:
    """All tools that the policy sees."""
    return [tool for tools in catalogue.values() for tool in tools if tool.audience is Audience.POLICY]


def expose(
    catalogue: Mapping[str, tuple[ToolDefinition, ...]], *, prefixed: Collection[str] = ()
) -> dict[str, tuple[ToolDefinition, ...]]:
    """Give every policy tool a unique name, starting from its `exposed_name`.

    If a prefixed name collides with another tool's own name (`a__b`), the other tool gets a prefix too.

    Args:
        prefixed: Servers whose tools always have the prefix.

    Raises:
        ConfigError: even `server__tool` is taken.
    """
    tools = policy_tools(catalogue)
    with_prefix = {_key(tool) for tool in tools if tool.server in prefixed}

    def name(tool: ToolDefinition) -> str:
        return _prefixed(tool) if _key(tool) in with_prefix else tool.exposed_name

    while more := {_key(tool) for tool in _sharing(tools, name)} - with_prefix:
        with_prefix |= more
    if left := _sharing(tools, name):
        taken = name(left[0])
        sharing = ", ".join(f"{tool.server}/{tool.name}" for tool in left if name(tool) == taken)
        raise ConfigError(
            f"{sharing} would all be called {taken!r}",
            key="servers",
            remedy="rename a server, or a tool under its `tools.change`",
        )
    return {
        server: tuple(replace(tool, exposed_name=name(tool)) if _key(tool) in with_prefix else tool for tool in listed)
        for server, listed in catalogue.items()
    }


def _sharing(tools: Collection[ToolDefinition], name: Callable[[ToolDefinition], str]) -> list[ToolDefinition]:
    counts = Counter(name(tool) for tool in tools)
    return [tool for tool in tools if counts[name(tool)] > 1]


def _key(tool: ToolDefinition) -> tuple[str, str]:
    return tool.server, tool.name


def _prefixed(tool: ToolDefinition) -> str:
    # Chat formats accept letters, digits, dash and underscore; a server's name may contain any character.
    return f"{re.sub(r'[^A-Za-z0-9_-]', '_', tool.server)}__{tool.exposed_name}"
