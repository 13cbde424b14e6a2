"""Resource tools: tools that the gateway makes of a server's instructions, resources and prompts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from mcp_rollout.gateway.config.models import ServerConfig
from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.gateway.types import (
    GET_INSTRUCTIONS,
    GET_PROMPT,
    LIST_PROMPTS,
    LIST_RESOURCES,
    READ_RESOURCE,
    ResourceKind,
    ToolDefinition,
)


class _Made(NamedTuple):
    resource_kind: ResourceKind
    exposed_name: str
    description: str
    properties: dict[str, Any]
    required: tuple[str, ...] = ()


_URI = {"uri": {"type": "string", "description": "The resource's URI."}}
_OF_PROMPT = {
    "name": {"type": "string", "description": "The prompt's name."},
    "arguments": {
        "type": "object",
        "description": "The prompt's arguments by name.",
        "additionalProperties": {"type": "string"},
    },
}
_ALL_RESOURCES = "List the resources of the server {server} that can be read, with their URIs."
_ALL_PROMPTS = "List the prompts of the server {server}, with their arguments."
_PROMPT = "Get a prompt of the server {server}, with its arguments filled in."
_INSTRUCTIONS = "Read how the server {server} is to be used."
_RESOURCE = "Read a resource of the server {server}."
_MADE = {
    GET_INSTRUCTIONS: _Made(ResourceKind.INSTRUCTIONS, "get_instructions", _INSTRUCTIONS, {}),
    LIST_RESOURCES: _Made(ResourceKind.RESOURCES, "list_resources", _ALL_RESOURCES, {}),
    READ_RESOURCE: _Made(ResourceKind.RESOURCES, "read_resource", _RESOURCE, _URI, ("uri",)),
    LIST_PROMPTS: _Made(ResourceKind.PROMPTS, "list_prompts", _ALL_PROMPTS, {}),
    GET_PROMPT: _Made(ResourceKind.PROMPTS, "get_prompt", _PROMPT, _OF_PROMPT, ("name",)),
}


def made_tool(server: str, name: str) -> ToolDefinition:
    """One of the tools above, for `server`."""
    made = _MADE[name]
    return ToolDefinition(
        server=server,
        name=name,
        exposed_name=made.exposed_name,
        description=made.description.format(server=server),
        input_schema={
            "type": "object",
            "properties": made.properties,
            "required": list(made.required),
            "additionalProperties": False,
        },
        read_only=True,
        idempotent=True,
        resource_kind=made.resource_kind,
    )


def resource_tools(
    server: str, config: ServerConfig, *, has: Collection[ResourceKind], taken: Collection[str]
) -> tuple[ToolDefinition, ...]:
    """The resource tools of an entry's `tools.offer`.

    Args:
        has: The kinds that the server declares.
        taken: Names of the server's own tools.

    Raises:
        ConfigError: the server does not have a kind that is to be offered, or has a tool of the same name.
    """
    key = f"servers.{server}.tools.offer"
    if missing := sorted(config.tools.offer - set(has)):
        found = f"it has: {', '.join(sorted(has)) or 'none of them'}"
        raise ConfigError(f"the server has no {' and no '.join(missing)}", key=key, remedy=found)
    names = [name for name, made in _MADE.items() if made.resource_kind in config.tools.offer]
    if both := [name for name in names if name in taken]:
        raise ConfigError(f"the server has a tool {both[0]!r} of its own", key=key, remedy="do not offer both")
    return tuple(made_tool(server, name) for name in names)
