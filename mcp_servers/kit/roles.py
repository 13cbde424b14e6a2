"""Harness tools: the rollout calls them, the policy never sees them. Also the annotations for tools."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import pydantic
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

from mcp_rollout.mcp_servers.kit.sdk import tools_of

ROLE_META = "mcp-rollout/role"
REHEARSAL_META = "mcp-rollout/rehearsal"
TRAJECTORIES_META = "mcp-rollout/trajectories"

HarnessRole = Literal["reset", "start", "reply", "elicit", "score", "release", "snapshot", "restore", "tasks", "expert"]
_BENEATH = tuple(str(Path(file).parent) for file in (__file__, pydantic.__file__))
F = TypeVar("F", bound=Callable[..., Awaitable[Any]])

READ = ToolAnnotations(read_only_hint=True, idempotent_hint=True, destructive_hint=False, open_world_hint=False)
"""Read-only."""
SET = ToolAnnotations(read_only_hint=False, idempotent_hint=True, destructive_hint=True, open_world_hint=False)
"""Idempotent write: a second identical call has no further effect and the same result."""
NOTE = ToolAnnotations(read_only_hint=False, idempotent_hint=True, destructive_hint=False, open_world_hint=False)
"""Idempotent write that deletes or overwrites nothing."""
CHANGE = ToolAnnotations(read_only_hint=False, idempotent_hint=False, destructive_hint=True, open_world_hint=False)
"""Write that is not idempotent: a second identical call has a further effect."""

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


def harness_tool(
    server: MCPServer, role: HarnessRole, description: str | None = None, *, meta: Mapping[str, Any] | None = None
) -> Callable[[F], F]:
    """Registers the decorated function as the server's harness tool for `role`, under the role's name if it is free.

    `Harness` covers what an environment usually needs; use this for other tools. The caller is the rollout, never the
    policy, so an exception reaches it with type and place.

    Args:
        meta: Added to the tool's `_meta`.
    """

    def register(function: F) -> F:
        @functools.wraps(function)
        async def reporting(*args: Any, **kwargs: Any) -> Any:
            try:
                return await function(*args, **kwargs)
            except ToolError:
                raise
            except Exception as error:  # the harness's boundary: the SDK would hide the exception's text
                raise ToolError(_described(error)) from error

        marked = {ROLE_META: role, **(meta or {})}
        # A server may have a tool of that name for the policy, and the SDK keeps the first of two.
        name = f"harness_{role}" if tools_of(server).get_tool(role) else role
        server.tool(name=name, description=description, meta=marked, annotations=_ANNOTATIONS[role])(reporting)
        return function

    return register


def _described(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    # Of a record with a wrong field, where it was made.
    last = next((each for each in reversed(frames) if not each.filename.startswith(_BENEATH)), frames[-1])
    return f"{type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno})"
