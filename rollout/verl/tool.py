"""The tool class `MCPTool`, which verl loads from the lock."""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any
from uuid import uuid4

from pydantic import PrivateAttr
from verl.experimental.agent_loop.tool_agent_loop import AgentData
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

from mcp_rollout.gateway.catalogue.tool_config import LockEntry, lock_entry
from mcp_rollout.gateway.errors import ConfigError, GatewayError
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.gateway.types import ContentKind, ToolResult
from mcp_rollout.rollout.environment.config import Environment, load_environment
from mcp_rollout.rollout.environment.validation import LOCK_KEY
from mcp_rollout.rollout.tokens.images import read_image
from mcp_rollout.rollout.verl.runtime import WORKER

CALLED: ContextVar[list[ToolResult | GatewayError]] = ContextVar("mcp_rollout_called")
"""Set by a loop that wants to know what a call gave, before verl makes a `ToolResponse` of it; for one call."""


class FullToolSchema(OpenAIFunctionToolSchema):
    """verl's schema type, which dumps the input schema exactly as the server sent it.

    verl's own fields keep only `type`, `description` and `enum` of top-level properties.
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

    `mcp_agent` reads only the lock entry. verl's stock `tool_agent` calls `execute`, where the session lives as long as
    the trajectory's `AgentData`, not as long as one call.
    """

    def __init__(self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema) -> None:
        # Not `super().__init__`, which prints every schema to standard output.
        self.config = config
        self.entry = lock_entry(config, tool_schema.function.name)
        WORKER.tool_agent_sessions.expect(self.entry)
        self.tool_schema = FullToolSchema.of(tool_schema, self.entry)
        self.name = self.entry.definition.exposed_name
        self._images = bool(config.get("images"))
        """Whether results contain images. Stock `tool_agent` fails on one if its model has no vision."""

    async def create(self, instance_id: str | None = None, **_: Any) -> tuple[str, ToolResponse]:
        return instance_id or str(uuid4()), ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """Call the tool in the session of the trajectory `kwargs["agent_data"]`.

        Returns:
            The result, its reward, and metrics.

        Raises:
            GatewayError: the call failed; stock `tool_agent` shows the message to the policy.
        """
        session = await WORKER.tool_agent_sessions.get(kwargs["agent_data"], self.entry)
        called = CALLED.get(None)
        try:
            result = await session.call(self.name, parameters)
        except GatewayError as error:
            if called is not None:
                called.append(error)
            raise
        if called is not None:
            called.append(result)
        metrics = {"is_error": result.is_error}
        response = ToolResponse(text=result.text)
        if self._images:
            blocks = [block for block in result.content if block.kind is ContentKind.IMAGE]
            decoded = [(block, image) for block in blocks if (image := read_image(block.data)) is not None]
            if decoded:
                text = result.text_without([block for block, _ in decoded])
                response = ToolResponse(text=text, image=[image for _, image in decoded])
        return response, result.reward or 0.0, metrics

    async def release(self, instance_id: str, **_: Any) -> None:
        """Do nothing: the session ends with the trajectory."""


async def session_of(agent_data: AgentData, tools: Iterable[object]) -> tuple[Session, Environment]:
    """The session of a trajectory and its environment, for agent loops that subclass verl's `ToolAgentLoop`.

    It is the one in which verl calls the tools; it lives as long as `agent_data`. Through it a loop reaches the
    harness: the user, the score, a snapshot.

    Args:
        agent_data: verl's object for the trajectory.
        tools: the loop's `tools`; those that are not MCP tools are ignored.

    Raises:
        ConfigError: none of the tools is locked from an environment, or several environments are.
        GatewayError: as `ToolAgentSessions.get`.
    """
    entries = {tool.entry.source: tool.entry for tool in tools if isinstance(tool, MCPTool)}
    if len(entries) != 1 or (entry := next(iter(entries.values()))).environment is None:
        problem = f"needs the tools of one environment, and has those of {len(entries)} files: {', '.join(entries)}"
        raise ConfigError(problem, key=LOCK_KEY, remedy="write the lock with `mcp-rollout tool-config ENVIRONMENT`")
    environment = load_environment(entry.source, ".")
    return await WORKER.tool_agent_sessions.get(agent_data, entry), environment
