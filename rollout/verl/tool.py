"""The class that lock entries name, so that verl loads them as tools of its own."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from pydantic import PrivateAttr
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

from gateway.catalogue.tool_config import LockEntry, lock_entry
from gateway.types import ContentKind
from rollout.tokens.images import read_image
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
        WORKER.stock_sessions.expect(self.entry)
        self.tool_schema = FullToolSchema.of(tool_schema, self.entry)
        self.name = self.entry.definition.exposed_name
        self._images = bool(config.get("images"))
        """Stock `tool_agent` fails on an image where its model has no vision, so it is given none unless asked for."""

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
        metrics = {"is_error": result.is_error}
        seen = [block for block in result.content if block.kind is ContentKind.IMAGE] if self._images else []
        pictures = {id(block): picture for block in seen if (picture := read_image(block.data)) is not None}
        if not pictures:
            return ToolResponse(text=result.text), result.reward or 0.0, metrics
        text = result.text_without([block for block in seen if id(block) in pictures])
        return ToolResponse(text=text, image=list(pictures.values())), result.reward or 0.0, metrics

    async def release(self, instance_id: str, **_: Any) -> None:
        """Nothing: the session ends with the trajectory."""
