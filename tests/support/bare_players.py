"""A trajectory played over bare MCP clients, as any program would."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from mcp import Client
from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult


@dataclass
class Player:
    """One trajectory: a world server, perhaps a user, and the messages so far."""

    world: Client
    trajectory: str
    user: Client | None = None
    seed: int = 0
    messages: list[dict[str, Any]] = field(default_factory=list)
    replies: int = 0

    async def ask(self, client: Client, tool: str, /, **arguments: Any) -> CallToolResult:
        meta = {"mcp-rollout/trajectory": self.trajectory, "mcp-rollout/seed": self.seed}
        return await client.call_tool(tool, arguments, meta=meta)

    async def harness(self, client: Client, tool: str, /, **arguments: Any) -> dict[str, Any]:
        result = await self.ask(client, tool, **arguments)
        assert not result.is_error, result.content
        assert result.structured_content is not None
        return result.structured_content

    async def call(self, tool: str, /, **arguments: Any) -> CallToolResult:
        """A policy's call, recorded in the messages."""
        made = {"type": "function", "function": {"name": tool, "arguments": arguments}}
        result = await self.ask(self.world, tool, **arguments)
        self.messages.append({"role": "assistant", "content": "", "tool_calls": [made]})
        self.messages.append({"role": "tool", "content": text(result)})
        return result

    async def say(self, content: str) -> dict[str, Any]:
        self.messages.append({"role": "assistant", "content": content})
        if self.user is None:
            return {"message": "", "done": True}
        self.replies += 1
        reply = await self.harness(self.user, "reply", seq=self.replies, message=content)
        self.messages.append({"role": "user", "content": reply["message"]})
        return reply

    async def begin(self, task: str, seed: int) -> None:
        self.seed = seed
        await self.harness(self.world, "reset", task=task, seed=seed)
        if self.user is not None:
            await self.harness(self.user, "reset", task=task, seed=seed)
        opening = await self.harness(self.user or self.world, "start")
        self.messages = [{"role": "user", "content": opening["message"]}]

    async def play_expert(self, task: str, seed: int) -> list[dict[str, Any]]:
        """Plays the whole script and gives the user's replies in order."""
        await self.begin(task, seed)
        replies: list[dict[str, Any]] = []
        for turn in (await self.harness(self.world, "expert", task=task, seed=seed))["turns"]:
            for call in turn.get("calls", []):
                await self.call(call["name"], **call["arguments"])
            if "content" in turn:
                replies.append(await self.say(turn["content"]))
        return replies

    async def score(self) -> dict[str, Any]:
        return await self.harness(self.world, "score", messages=self.messages)


def text(result: CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if block.type == "text")


Seats = Callable[..., AbstractAsyncContextManager[Callable[[str], Player]]]


@asynccontextmanager
async def seated(world: MCPServer, user: MCPServer) -> AsyncIterator[Callable[[str], Player]]:
    """`player("id")` is a trajectory; all of them share the servers."""
    async with Client(world) as there, Client(user) as customer:
        yield lambda trajectory: Player(world=there, user=customer, trajectory=trajectory)
