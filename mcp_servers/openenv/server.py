"""`python -m mcp_rollout.mcp_servers.openenv URL`: an OpenEnv server's environment as a world for each trajectory."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from mcp import MCPError
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import METHOD_NOT_FOUND, CallToolResult, TextContent, Tool
from pydantic import BaseModel, ValidationError

from mcp_rollout.mcp_servers.kit import (
    Harness,
    Reply,
    SchemaTool,
    Split,
    Splits,
    TaskItem,
    ToolError,
    harness_tool,
    parser,
    serve,
    tool_result,
)
from mcp_rollout.mcp_servers.kit.records import Opening
from mcp_rollout.mcp_servers.openenv.session import Address, Answer, CapacityReached, Json, Refusal, Seen, Session

PROMPT = "Act in an environment with the tools, until it says that the episode is over."
OVER = "The episode is over: no call reaches the environment any more."
_RETRY_S = 0.2


@dataclass(frozen=True, slots=True)
class Offer:
    """What a server has."""

    tools: list[Tool]
    """Its MCP tools, or the one tool `step`."""
    are_mcp: bool
    most: int | None
    """Sessions that it holds at a time; None if more than this server opened to find out."""


class _Called(BaseModel):
    """What an `MCPEnvironment` observes of a call."""

    result: CallToolResult | None = None
    error: Refusal | None = None


@dataclass(slots=True)
class World:
    seed: int
    session: Session | None = None
    opening: Seen = field(default_factory=Seen)
    """What the reset returned."""
    seen: Seen = field(default_factory=Seen)
    """What the last step returned, at first the reset."""

    async def close(self) -> None:
        if self.session is not None:
            await self.session.aclose()


async def look(address: Address) -> Offer:
    """Ask the server what it has, with two sessions. Raises ToolError."""
    async with aclosing(await address.open()) as first:
        listed = await first.tools()
        tools = listed or [await address.step_tool()]
        async with aclosing(await address.open()) as second:
            try:
                await second.ask(Answer[Json], "state")
            except CapacityReached as reached:
                return Offer(tools, bool(listed), reached.most)
    return Offer(tools, bool(listed), None)


def create_server(
    address: Address,
    offer: Offer,
    *,
    train: int = 100,
    test: int = 20,
    prompt: str = PROMPT,
    wait_s: float = 60.0,
) -> MCPServer:
    """The server of one environment.

    Args:
        offer: What `look` found.
        train: Number of seeds in the split `train`.
        test: Number of seeds in the split `test`.
        prompt: The instructions, for the system message.
        wait_s: How long a reset tries to get a session where all that the server holds are taken.
    """
    splits = Splits("openenv", {"train": train, "test": test})

    def begin(task: str, seed: int) -> World:
        splits.parse(task)
        return World(seed)

    async def run(ctx: Context[Any, Any], name: str, arguments: Json) -> CallToolResult:
        world = harness.world(ctx)
        assert world.session is not None
        if world.seen.done:
            return tool_result(OVER, is_error=True, done=True)
        action = {"type": "call_tool", "tool_name": name, "arguments": arguments} if offer.are_mcp else arguments
        try:
            world.seen = seen = await world.session.ask(Answer[Seen], "step", action)
        except ToolError as error:
            if not world.session.lost:
                return tool_result(str(error), is_error=True)
            # Not an error of the tool, which the policy would have to answer for: the code of requests that reach none.
            raise MCPError(code=METHOD_NOT_FOUND, message=str(error)) from error
        text, failed = _result(seen.observation) if offer.are_mcp else (_text(seen.observation), False)
        return tool_result(text, reward=seen.reward, done=seen.done, is_error=failed)

    tools: list[Any] = [
        SchemaTool.of(each.name, each.description or "", each.input_schema, run) for each in offer.tools
    ]
    server = MCPServer("openenv", instructions=prompt, log_level="WARNING", tools=tools)
    harness = Harness(server, begin)

    @harness.tasks
    def tasks(split: Split) -> Iterator[TaskItem]:
        for task in splits.names(split):
            yield TaskItem(task=task, seed=splits.seed(task))

    @harness.reply
    def reply(world: World, message: str) -> Reply:
        """There is no user: a message without a call ends the trajectory."""
        return Reply(message="", done=True)

    @harness.placing
    async def open_session(world: World) -> None:
        """Not in `begin`, before which the trajectory's previous world keeps its session."""
        until = time.monotonic() + wait_s
        while True:
            world.session = await address.open()
            try:
                world.opening = world.seen = await world.session.ask(Answer[Seen], "reset", {"seed": world.seed})
                return
            except CapacityReached:  # by other trajectories, or by other clients of the server
                await world.close()
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(_RETRY_S)

    harness.closing(World.close)

    # Not by `harness.start`, which makes a world for the prompt of each task that is listed.
    @harness_tool(server, "start", "The observation that the reset returned.")
    async def start(ctx: Context) -> Opening:
        return Opening(message=_text(harness.world(ctx).opening.observation))

    del tasks, reply, open_session, start  # registered
    return server


def _text(observation: Any) -> str:
    """The observation, as the server's own client sees it."""
    return json.dumps(observation, ensure_ascii=False)


def _result(observation: Any) -> tuple[str, bool]:
    """The text of an MCP tool's result, and whether the tool refused."""
    try:
        called = _Called.model_validate(observation)
    except ValidationError:
        called = _Called()
    if called.error is not None:
        return called.error.message, True
    result = called.result or CallToolResult(content=[])
    texts = [block.text for block in result.content if isinstance(block, TextContent)]
    return "\n".join(texts) if texts else _text(observation), result.is_error


def main() -> None:
    arguments = parser(
        "mcp_rollout.mcp_servers.openenv", "An OpenEnv server's environment as a world for each trajectory."
    )
    arguments.add_argument("url", help="of the OpenEnv server, for example http://127.0.0.1:8000")
    arguments.add_argument("--train", type=int, default=100, help="seeds in the split train (default: %(default)s)")
    arguments.add_argument("--test", type=int, default=20, help="seeds in the split test (default: %(default)s)")
    arguments.add_argument("--prompt", default=PROMPT, help="the instructions (default: %(default)s)")
    arguments.add_argument("--timeout-s", type=float, default=50, help="for one answer (default: %(default)s)")
    arguments.add_argument("--ping-s", type=float, default=10, help="of silence until a ping (default: %(default)s)")
    arguments.add_argument("--wait-s", type=float, default=50, help="for a free session (default: %(default)s)")
    given = arguments.parse_args()
    address = Address(url=given.url, timeout_s=given.timeout_s, ping_s=given.ping_s)
    try:
        offer = asyncio.run(look(address))
    except ToolError as error:
        arguments.error(f"{given.url}: {error}")
    if offer.most is not None:
        sys.stderr.write(f"{CapacityReached(offer.most)}; further trajectories wait\n")
    splits = {"train": given.train, "test": given.test}
    serve(create_server(address, offer, **splits, prompt=given.prompt, wait_s=given.wait_s), given.http)
