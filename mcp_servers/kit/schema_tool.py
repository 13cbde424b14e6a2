"""`SchemaTool`: a tool that is described by a given JSON Schema, not by a Python function."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from mcp.server.context import LifespanContextT, RequestT
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.tools import Tool
from mcp_types import CallToolResult
from pydantic import PrivateAttr

from mcp_rollout.mcp_servers.kit.roles import CHANGE

Run = Callable[[Context[Any, Any], str, dict[str, Any]], Awaitable[CallToolResult]]
"""(context, tool's name, arguments) -> result."""


class SchemaTool(Tool):
    """A tool whose arguments reach `run` as they were sent, neither validated nor converted."""

    _run: Run = PrivateAttr()

    @classmethod
    def of(cls, name: str, description: str, input_schema: Mapping[str, Any], run: Run) -> SchemaTool:
        # No call may be sent twice: not even of a tool that only reads, where calls count in the score.
        tool = cls.from_function(
            _not_called, name=name, description=description, annotations=CHANGE, structured_output=False
        )
        assert isinstance(tool, cls)
        tool.parameters, tool._run = dict(input_schema), run
        return tool

    async def run(
        self,
        arguments: dict[str, Any],
        context: Context[LifespanContextT, RequestT],
        convert_result: bool = False,
    ) -> CallToolResult:
        return await self._run(context, self.name, arguments)


async def _not_called() -> str:
    """`SchemaTool.run` takes its place: the SDK makes tools of functions only."""
    raise NotImplementedError
