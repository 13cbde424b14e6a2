"""Which tools are the harness's: what the rollout calls and the policy never sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

ROLE_META = "mcp-rollout/role"

HarnessRole = Literal["reset", "start", "reply", "elicit", "score", "release", "snapshot", "restore", "tasks", "expert"]
F = TypeVar("F", bound=Callable[..., Any])

READ = ToolAnnotations(read_only_hint=True, idempotent_hint=True, destructive_hint=False, open_world_hint=False)
"""Looks and changes nothing."""
SET = ToolAnnotations(read_only_hint=False, idempotent_hint=True, destructive_hint=True, open_world_hint=False)
"""Sets something to what the arguments say: a second identical call has no further effect and the same answer."""
NOTE = ToolAnnotations(read_only_hint=False, idempotent_hint=True, destructive_hint=False, open_world_hint=False)
"""Like `SET`, and takes nothing away."""
CHANGE = ToolAnnotations(read_only_hint=False, idempotent_hint=False, destructive_hint=True, open_world_hint=False)
"""Changes the world; a second identical call is another matter."""

_ANNOTATIONS: dict[HarnessRole, ToolAnnotations] = {
    "reset": SET,
    "start": READ,
    "reply": NOTE,
    "elicit": NOTE,
    "score": READ,
    "release": SET,
    "snapshot": READ,
    "restore": SET,
    "tasks": READ,
    "expert": READ,
}


def harness_tool(server: MCPServer, role: HarnessRole, description: str | None = None) -> Callable[[F], F]:
    """Registers the decorated function as the server's harness tool for `role`, under the role's name.

    `Harness` does this for what an environment usually needs; this is for tools off its pattern.
    """
    return server.tool(name=role, description=description, meta={ROLE_META: role}, annotations=_ANNOTATIONS[role])
