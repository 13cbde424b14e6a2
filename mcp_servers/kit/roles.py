"""Which tools are the harness's: what the rollout calls and the policy never sees."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

ROLE_META = "mcp-rollout/role"

HarnessRole = Literal["reset", "start", "reply", "elicit", "score", "release", "snapshot", "restore", "tasks", "expert"]
F = TypeVar("F", bound=Callable[..., Awaitable[Any]])

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

    `Harness` does this for what an environment usually needs; this is for tools off its pattern. An exception of the
    function is told to whoever asked, with its type and place: that is the rollout, never the policy.
    """

    def register(function: F) -> F:
        @functools.wraps(function)
        async def told(*args: Any, **kwargs: Any) -> Any:
            try:
                return await function(*args, **kwargs)
            except ToolError:
                raise
            except Exception as error:  # the harness's boundary: mcp would say no more than that something broke
                raise ToolError(_told(error)) from error

        server.tool(name=role, description=description, meta={ROLE_META: role}, annotations=_ANNOTATIONS[role])(told)
        return function

    return register


def _told(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno})"
