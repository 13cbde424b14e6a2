"""The class that lock entries name, so that verl loads them as tools of its own."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from pydantic import PrivateAttr
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

from gateway.tool_config import LockEntry, lock_entry
from rollout.verl.runtime import WORKER


class FullToolSchema(OpenAIFunctionToolSchema):
    """verl's schema type, rendering the input schema that the server sent.

    verl's own fields keep `type`, `description` and `enum` of top-level properties and drop the rest.
    """

    _full: dict[str, Any] = PrivateAttr(default_factory=dict)

    @classmethod
    def of(cls, schema: OpenAIFunctionToolSchema, entry: LockEntry) -> FullToolSchema:
        full = cls.model_validate(schema.model_dump())
        full._full = entry.definition.openai_schema()
        return full

    def model_dump(self, **_: Any) -> dict[str, Any]:
        return self._full


class MCPTool(BaseTool):
    """One tool of an MCP server.

    `mcp_agent` reads only its lock entry. verl's stock `tool_agent` calls `execute`; the state of the environment then
    lives as long as the trajectory's `AgentData`, not as long as one call.
    """

    def __init__(self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema) -> None:
        # Not `super().__init__`, which prints every schema to standard output.
        self.config = config
        self.entry = lock_entry(config, tool_schema.function.name)
        self.tool_schema = FullToolSchema.of(tool_schema, self.entry)
        self.name = self.entry.definition.exposed_name

    async def create(self, instance_id: str | None = None, **_: Any) -> tuple[str, ToolResponse]:
        return instance_id or str(uuid4()), ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """Call the tool in the world of `kwargs["agent_data"]`.

        Raises:
            GatewayError: the world broke; stock `tool_agent` shows the message to the policy.
        """
        session = await WORKER.stock_sessions.get(kwargs["agent_data"], self.entry)
        result = await session.call(self.name, parameters)
        return ToolResponse(text=result.text), result.reward or 0.0, {"is_error": result.is_error}

    async def release(self, instance_id: str, **_: Any) -> None:
        """Nothing: the session ends with the trajectory."""
