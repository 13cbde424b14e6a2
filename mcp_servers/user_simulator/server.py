"""The scripted user as an MCP server: harness tools only, nothing for the policy."""

from __future__ import annotations

from typing import Annotated

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from mcp_servers._harness import Done, Elicited, Opening, Reply, harness_tool
from mcp_servers._state import TrajectoryState
from mcp_servers.user_simulator.conversation import Conversation, OutOfOrder
from mcp_servers.user_simulator.load import Scenarios


def create_server(scenarios: Scenarios) -> MCPServer:
    server = MCPServer("user_simulator", log_level="WARNING")
    state = TrajectoryState[Conversation]()

    @harness_tool(server, "reset")
    async def reset(task: str, seed: int, ctx: Context) -> Done:
        """A new conversation with the user of this task."""
        try:
            state.reset(ctx, Conversation(scenarios(task, seed)))
        except LookupError as error:
            raise ToolError(str(error)) from error
        return Done()

    @harness_tool(server, "start")
    async def start(ctx: Context) -> Opening:
        """The user's opening message; asking again gives the same."""
        return Opening(message=state.of(ctx).scenario.opening)

    @harness_tool(server, "reply")
    async def reply(seq: Annotated[int, Field(description="1, 2, 3, ...")], message: str, ctx: Context) -> Reply:
        """The user's reply to the agent's message; a repeated number gives the same reply."""
        try:
            return state.of(ctx).reply(seq, message)
        except OutOfOrder as error:
            raise ToolError(str(error)) from error

    @harness_tool(server, "elicit")
    async def elicit(seq: Annotated[int, Field(description="1, 2, 3, ...")], message: str, ctx: Context) -> Elicited:
        """The user's answer to a question that a server asks within a call; a repeated number gives the same answer."""
        try:
            return state.of(ctx).elicit(seq, message)
        except OutOfOrder as error:
            raise ToolError(str(error)) from error

    @harness_tool(server, "release")
    async def release(ctx: Context) -> Done:
        """The end of the trajectory."""
        state.drop(ctx)
        return Done()

    return server
